//! Where ggml's devices live: each in a helper, the same program started again, so that a fault in the library or in a driver ends that
//! one device. A program that cannot be its own helper has them in its own process, and only if it was told where the libraries are.

use crate::device::{ggml_device, info};
use crate::devices::{Class, GgmlDevice, devices, unknown};
use crate::library::Library;
use crate::memory::Heap;
use crate::places;
use outboard_core::local::LocalDevice;
use outboard_core::{DeviceInfo, Error, Host, Result};
use outboard_host::MemoryBudget;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

/// Whether this program can be its own helper.
static CAN_HELP: OnceLock<()> = OnceLock::new();
/// What this process was told.
static FOLDER: OnceLock<PathBuf> = OnceLock::new();

/// A device of the ggml that is installed here.
#[derive(Clone, Debug)]
pub struct Found {
    /// ggml's name of it: `CUDA0`, `Vulkan1`, `CPU`.
    pub name: String,
    /// Whether it is hardware.
    pub class: Class,
    /// What it is; its id is ggml's name.
    pub info: DeviceInfo,
    home: Home,
}

/// Where a device lives.
#[derive(Clone, Debug)]
enum Home {
    /// In a process of its own, with this backend of this folder.
    #[cfg(unix)]
    Helper { folder: PathBuf, backend: String },
    /// In this one.
    Here(GgmlDevice),
}

/// Names the folder of ggml's libraries, before anything is looked for: it counts more than [`VARIABLE`](crate::VARIABLE).
pub fn use_folder(folder: &Path) {
    // A variable that is empty names none.
    if !folder.as_os_str().is_empty() {
        let _ = FOLDER.set(folder.to_owned());
    }
}

/// To be called first by a program that is to be its own helper: does a helper's work if this process is one, and gives how it ends.
pub fn run_if_helper() -> Option<ExitCode> {
    #[cfg(unix)]
    {
        let _ = CAN_HELP.set(());
        let mut args = std::env::args_os().skip(1);
        if args.next().is_some_and(|first| first == helper::ARGUMENT) {
            let args: Vec<String> = args.map(|arg| arg.to_string_lossy().into_owned()).collect();
            return Some(helper::run(&args));
        }
    }
    None
}

/// Why there is no device of ggml's, for whoever has named one. If there are no libraries, `else_name` says how their folder is named.
pub fn why_none(else_name: &str) -> String {
    match folder() {
        Ok(None) => format!("no libraries of ggml, which llama.cpp installs, were found: {else_name}"),
        Ok(Some(folder)) => format!("ggml of {} has no device here", folder.display()),
        Err(why) => format!("{why}: {else_name}"),
    }
}

/// The devices of the ggml that is installed; none without one. What is wrong with one is said in a line of the log.
pub fn find() -> &'static [Found] {
    static ALL: OnceLock<Vec<Found>> = OnceLock::new();
    ALL.get_or_init(|| {
        let found = folder().and_then(|folder| folder.map_or(Ok(Vec::new()), |folder| look(&folder)));
        found.inspect_err(|why| tracing::warn!("ggml: {why}")).unwrap_or_default()
    })
}

/// The folder of the libraries. Without having been told, only a program that can be its own helper looks for one: a fault in a library
/// would end it otherwise.
fn folder() -> Result<Option<PathBuf>> {
    let told = FOLDER.get().cloned().or_else(places::told);
    match told {
        Some(told) if places::parts(&told).is_some() => Ok(Some(told)),
        Some(told) => Err(Error::Request(crate::OpenError::NoBase(told).to_string())),
        None => Ok(CAN_HELP.get().and_then(|()| places::usual())),
    }
}

fn look(folder: &Path) -> Result<Vec<Found>> {
    #[cfg(unix)]
    if CAN_HELP.get().is_some() {
        return helper::found(folder);
    }
    let library = Library::open(folder, None).map_err(|why| Error::Request(why.to_string()))?;
    let library = Arc::new(library);
    warn(&notes(&library));
    let of = |device: GgmlDevice| {
        let info = info(&Heap::new(device.clone(), 1), &device.name);
        Found { name: device.name.clone(), class: device.class, info, home: Home::Here(device) }
    };
    Ok(devices(&library).into_iter().map(of).collect())
}

/// What is wrong with backends, and which devices are left out.
fn notes(library: &Arc<Library>) -> Vec<String> {
    [library.problems(), &unknown(library)].concat()
}

fn warn(notes: &[String]) {
    notes.iter().for_each(|note| tracing::warn!("ggml: {note}"));
}

/// Opens a device in `host`, under this name. One that runs on processors gets so many threads, and memory of the budget.
pub fn open(
    host: &Arc<Host>,
    found: &Found,
    name: &str,
    threads: usize,
    budget: &Arc<MemoryBudget>,
) -> Arc<LocalDevice> {
    match &found.home {
        Home::Here(device) => ggml_device(host, device, name, threads, budget),
        #[cfg(unix)]
        Home::Helper { folder, backend } => {
            let info = DeviceInfo { id: name.to_owned(), name: name.to_owned(), ..found.info.clone() };
            let args = [backend, &found.name, name, &threads.to_string()].map(Into::into);
            helper::open(host, folder, args, info, budget)
        }
    }
}

#[cfg(unix)]
mod helper {
    use super::*;
    use crate::device::within;
    use crate::devices::HELPER_VARIABLES;
    use crate::library;
    use crate::log;
    use outboard_core::{Device, DeviceKind, at_once};
    use outboard_helper::{Launch, Offer, Offers, end_with_the_other_side, helper_device, serve};
    use std::ffi::OsString;
    use std::io;

    /// The first one of a helper.
    pub(super) const ARGUMENT: &str = "ggml-helper";

    fn launch(folder: &Path, args: impl IntoIterator<Item = OsString>) -> Launch {
        let args = std::iter::once(OsString::from(ARGUMENT)).chain(args);
        let variables = HELPER_VARIABLES.map(|(name, value)| (name.into(), value.into()));
        let env = std::iter::once((places::VARIABLE.into(), folder.into())).chain(variables).collect();
        Launch { env, ..Launch::this_program(args) }
    }

    /// The devices of every backend, each of which is asked in a helper of its own.
    pub(super) fn found(folder: &Path) -> Result<Vec<Found>> {
        let backends = library::backends(folder).map_err(|why| Error::Request(why.to_string()))?;
        tracing::debug!("ggml of {}: {}", folder.display(), backends.join(", "));
        let found = at_once(&backends, |backend| of_backend(folder, backend));
        let or_warn = |found: Result<Vec<Found>>| found.inspect_err(|why| warn(&[why.to_string()])).unwrap_or_default();
        Ok(found.into_iter().flat_map(or_warn).collect())
    }

    fn of_backend(folder: &Path, backend: &str) -> Result<Vec<Found>> {
        let home = Home::Helper { folder: folder.to_owned(), backend: backend.to_owned() };
        let of = |Offer { info, is_software }: Offer| Found {
            name: info.name.clone(),
            class: if is_software { Class::Software } else { Class::Hardware },
            info,
            home: home.clone(),
        };
        let Offers { devices, notes } = launch(folder, [backend.into()]).offers(backend)?;
        warn(&notes);
        Ok(devices.into_iter().map(of).collect())
    }

    pub(super) fn open(
        host: &Arc<Host>,
        folder: &Path,
        args: [OsString; 4],
        info: DeviceInfo,
        budget: &Arc<MemoryBudget>,
    ) -> Arc<LocalDevice> {
        let info = within(info, budget);
        let pool = (info.kind == DeviceKind::Cpu).then(|| budget.clone() as Arc<_>);
        helper_device(host, launch(folder, args), info, pool)
    }

    /// A helper's work, on a backend: to say what it has, or with a device, its name here and its threads, to be that device.
    pub(super) fn run(args: &[String]) -> ExitCode {
        log::print();
        match end_with_the_other_side().and_then(|()| served(args)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => {
                log::line(&format!("a helper of ggml, which rpc-server and outboard start for themselves: {why}"));
                ExitCode::FAILURE
            }
        }
    }

    fn served(args: &[String]) -> io::Result<()> {
        let folder = places::told().unwrap_or_default();
        let library = Library::open(&folder, args.first().map(String::as_str));
        let library = library.map(Arc::new).map_err(|why| Error::Request(why.to_string()));
        library.and_then(|library| work(&library, args)).unwrap_or_else(|why| serve(Err(why), None))
    }

    fn work(library: &Arc<Library>, args: &[String]) -> Result<io::Result<()>> {
        let all = devices(library);
        match args {
            [_] => {
                let offers = Offers { devices: all.iter().map(offer).collect(), notes: notes(library) };
                Ok(serve(Ok(offers), None))
            }
            // Whoever starts it knows what it is.
            [_, device, name, threads] => Ok(serve(Ok(Offers::default()), Some(be(&all, device, name, threads)?))),
            _ => Err(Error::Misuse("a helper with other arguments".into())),
        }
    }

    fn offer(device: &GgmlDevice) -> Offer {
        let info = info(&Heap::new(device.clone(), 1), &device.name);
        Offer { info, is_software: device.class == Class::Software }
    }

    fn be(all: &[GgmlDevice], device: &str, name: &str, threads: &str) -> Result<Arc<dyn Device>> {
        let gone = || Error::Request(format!("ggml has no device {device} any more"));
        let found = all.iter().find(|found| found.name == device).ok_or_else(gone)?;
        // What it takes is paid for where it was started.
        let budget = MemoryBudget::new(Some(u64::MAX));
        Ok(ggml_device(&Host::new(), found, name, threads.parse().unwrap_or(1), &budget))
    }
}
