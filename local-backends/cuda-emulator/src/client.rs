//! The emulator as a test sees it: loads the library so that cudarc finds it, sets it up, reads what it counted and found.
use crate::control::{RawFinding, RawLaunch};
use crate::count::Counts;
use crate::driver::{Config, Live};
use crate::finding::Fault;
use libloading::Library;
use libloading::os::unix;
use std::ffi::{CString, c_char};
use std::path::PathBuf;
use std::sync::OnceLock;

/// Where the library is, if it is not beside the test.
pub const LIBRARY_VARIABLE: &str = "OUTBOARD_CUDA_EMULATOR_LIBRARY";

/// The library's file name.
const FILE: &str = "liboutboard_cuda_emulator.so";

/// A launch that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launched {
    /// Name of the kernel.
    pub kernel: String,
    /// Blocks of the grid.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// What it counted.
    pub counts: Counts,
}

/// A fault that a kernel had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// What it is; `None` from a library of another version.
    pub fault: Option<Fault>,
    /// Name of the kernel.
    pub kernel: String,
    /// One line: kernel, PTX line, source line, block, lane, what.
    pub text: String,
}

/// Functions of the library beyond CUDA's ([`crate::control`]).
#[derive(Clone, Copy, Debug)]
struct Functions {
    configure: extern "C" fn(&Config),
    config: extern "C" fn(&mut Config),
    live: extern "C" fn(&mut Live),
    launch: extern "C" fn(usize, &mut RawLaunch) -> u32,
    finding: extern "C" fn(usize, &mut RawFinding) -> u32,
    forget: extern "C" fn(),
    fail_call: unsafe extern "C" fn(*const c_char, u64, u32),
    fail_kernel: unsafe extern "C" fn(*const c_char, u64, u32),
    clear_faults: extern "C" fn(),
    calls: unsafe extern "C" fn(*const c_char) -> u64,
    uninitialise: extern "C" fn(u64, u64) -> u32,
}

impl Functions {
    fn of(library: &Library) -> Result<Self, libloading::Error> {
        // SAFETY: these are the functions of `control`, with their types.
        unsafe {
            Ok(Self {
                configure: *library.get(b"emulator_configure")?,
                config: *library.get(b"emulator_config")?,
                live: *library.get(b"emulator_live")?,
                launch: *library.get(b"emulator_launch")?,
                finding: *library.get(b"emulator_finding")?,
                forget: *library.get(b"emulator_forget")?,
                fail_call: *library.get(b"emulator_fail_call")?,
                fail_kernel: *library.get(b"emulator_fail_kernel")?,
                clear_faults: *library.get(b"emulator_clear_faults")?,
                calls: *library.get(b"emulator_calls")?,
                uninitialise: *library.get(b"emulator_uninitialise")?,
            })
        }
    }
}

/// The loaded driver.
#[derive(Clone, Copy, Debug)]
pub struct Emulator {
    functions: Functions,
}

fn words(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

impl Emulator {
    /// The file of the library: where the variable says, or in the folder of the running program or above, where cargo puts it.
    ///
    /// # Errors
    /// A text that says where it is not.
    pub fn file() -> Result<PathBuf, String> {
        if let Some(path) = std::env::var_os(LIBRARY_VARIABLE) {
            return Ok(path.into());
        }
        let program = std::env::current_exe().map_err(|e| format!("the program's own path: {e}"))?;
        let folders = program.ancestors().skip(1).take(3);
        let mut files = folders.flat_map(|f| [f.join("deps").join(FILE), f.join(FILE)]);
        let missing =
            || format!("{FILE} is not beside {}: build the package, or set {LIBRARY_VARIABLE}", program.display());
        files.find(|f| f.is_file()).ok_or_else(missing)
    }

    /// Loads the library, once in a process. Whoever opens `libcuda.so` afterwards gets it, because that is its name (soname); another
    /// process gets it by `LD_PRELOAD` with [`Emulator::file`].
    ///
    /// # Errors
    /// A text that says what could not be loaded.
    pub fn load() -> Result<Self, String> {
        static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
        let open = || {
            let file = Self::file()?;
            // SAFETY: the library is ours; nothing runs when it is loaded.
            let library = unsafe { unix::Library::open(Some(&file), unix::RTLD_NOW | unix::RTLD_GLOBAL) };
            library.map(Library::from).map_err(|e| format!("{}: {e}", file.display()))
        };
        let library = LIBRARY.get_or_init(open).as_ref().map_err(Clone::clone)?;
        let other = |e| format!("the library is of another version ({e}): build the package again");
        Ok(Self { functions: Functions::of(library).map_err(other)? })
    }

    /// Sets what devices there are, before the first call of the driver; later not their number, capability and memory.
    pub fn configure(&self, config: &Config) {
        (self.functions.configure)(config);
    }

    /// How it is set.
    pub fn config(&self) -> Config {
        let mut config = Config::default();
        (self.functions.config)(&mut config);
        config
    }

    /// What the program has made and not given back.
    pub fn live(&self) -> Live {
        let mut live = Live::default();
        (self.functions.live)(&mut live);
        live
    }

    /// Launches of a kernel that are over, in the order in which they ended; of all kernels if the name is empty.
    pub fn launches(&self, kernel: &str) -> Vec<Launched> {
        let mut raw = RawLaunch::default();
        let all = (0..).map_while(|i| {
            let there = (self.functions.launch)(i, &mut raw) == 1;
            there.then(|| Launched { kernel: words(&raw.kernel), grid: raw.grid, block: raw.block, counts: raw.counts })
        });
        all.filter(|l| kernel.is_empty() || l.kernel == kernel).collect()
    }

    /// Faults that a kernel had; of all kernels if the name is empty.
    pub fn findings(&self, kernel: &str) -> Vec<Found> {
        let mut raw = RawFinding::default();
        let all = (0..).map_while(|i| {
            let there = (self.functions.finding)(i, &mut raw) == 1;
            there.then(|| Found {
                fault: Fault::from_code(raw.fault),
                kernel: words(&raw.kernel),
                text: words(&raw.text),
            })
        });
        all.filter(|f| kernel.is_empty() || f.kernel == kernel).collect()
    }

    /// Drops launches and findings.
    pub fn forget(&self) {
        (self.functions.forget)();
    }

    /// Lets a call of the driver fail once with a code, after so many that pass; any call if the name is empty.
    pub fn fail_call(&self, name: &str, after: u64, code: u32) {
        fail(self.functions.fail_call, name, after, code);
    }

    /// Lets a kernel fail once with a code that its context keeps, after so many that pass; any kernel if the name is empty.
    pub fn fail_kernel(&self, name: &str, after: u64, code: u32) {
        fail(self.functions.fail_kernel, name, after, code);
    }

    /// Lets a kernel run until its context is destroyed.
    pub fn hang_kernel(&self, name: &str, after: u64) {
        fail(self.functions.fail_kernel, name, after, 0);
    }

    /// Drops faults that have not come yet.
    pub fn clear_faults(&self) {
        (self.functions.clear_faults)();
    }

    /// How often a call of the driver was made, also one that failed.
    pub fn calls(&self, name: &str) -> u64 {
        // No function has a zero in its name.
        let Ok(name) = CString::new(name) else { return 0 };
        // SAFETY: the name is valid for the call.
        unsafe { (self.functions.calls)(name.as_ptr()) }
    }

    /// Says of device memory that nobody has written it. Whether it is in one allocation.
    pub fn uninitialise(&self, address: u64, bytes: u64) -> bool {
        (self.functions.uninitialise)(address, bytes) == 1
    }
}

/// Calls a function that lets something of this name fail.
fn fail(function: unsafe extern "C" fn(*const c_char, u64, u32), name: &str, after: u64, code: u32) {
    // No function or kernel has a zero in its name.
    let Ok(name) = CString::new(name) else { return };
    // SAFETY: the name is valid for the call.
    unsafe { function(name.as_ptr(), after, code) }
}
