//! Modules: PTX made ready to be run on a device.
use super::context::Context;
use super::{Answer, Code, driver, lock, log};
use crate::code::{Kernel, Layout, lower};
use crate::ptx::{self, Error};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

/// The newest PTX that the driver takes: that of CUDA 12.2.
const NEWEST_PTX: u32 = 82;

#[derive(Debug)]
pub(super) struct Module {
    pub(super) handle: usize,
    pub(super) context: usize,
    kernels: BTreeMap<String, Arc<Kernel>>,
    /// Address and size of every global variable.
    pub(super) globals: HashMap<String, (u64, u64)>,
    version: u32,
    target: u32,
    /// Handles of functions that were asked for.
    known: Mutex<HashMap<String, usize>>,
}

/// A kernel of a module, and what a program has set for it.
#[derive(Debug)]
pub(super) struct Function {
    pub(super) context: usize,
    pub(super) kernel: Arc<Kernel>,
    pub(super) version: u32,
    pub(super) target: u32,
    /// Bytes of shared memory that a launch may add.
    pub(super) dynamic_limit: Mutex<u32>,
}

impl Module {
    /// Reads PTX. What the emulator does not know is an error here, with a line that says what.
    pub(super) fn load(context: &Arc<Context>, text: &str) -> Answer<Arc<Self>> {
        let driver = driver();
        let device = driver.device(context.device as i32)?;
        let refuse = |error: &Error, code: Code| {
            log(&format!("module not loaded: {error}"));
            code
        };
        let parsed = ptx::parse(text).map_err(|e| refuse(&e, Code::INVALID_PTX))?;
        if parsed.version > NEWEST_PTX {
            let error = Error::at(1, format!("version {} is newer than the driver", parsed.version));
            return Err(refuse(&error, Code::UNSUPPORTED_PTX_VERSION));
        }
        if parsed.target > device.capability {
            let error = Error::at(1, format!("sm_{} on a device of sm_{}", parsed.target, device.capability));
            return Err(refuse(&error, Code::NO_BINARY_FOR_GPU));
        }
        let mut globals = HashMap::new();
        let free = |globals: &HashMap<String, (u64, u64)>| {
            globals.values().for_each(|(address, _)| _ = driver.memory.free(*address, false));
        };
        for variable in parsed.globals.iter().filter(|v| v.size > 0) {
            let size = u64::from(variable.size);
            let address = driver.memory.allocate_with(device.ordinal, device.memory, size, context.handle, |region| {
                for (i, byte) in variable.init.iter().enumerate() {
                    region.store(region.base + i as u64, 1, u128::from(*byte));
                }
                region.set_written(region.base, size, true);
                region.read_only = variable.read_only;
            });
            match address {
                Ok(address) => _ = globals.insert(variable.name.clone(), (address, size)),
                Err(code) => {
                    free(&globals);
                    return Err(code);
                }
            }
        }
        let layout: Layout = globals.iter().map(|(name, (address, _))| (name.clone(), *address)).collect();
        let mut kernels = BTreeMap::new();
        for function in parsed.functions.iter().filter(|f| f.entry && f.defined) {
            match lower(&parsed, function, &layout) {
                Ok(kernel) => _ = kernels.insert(kernel.name.clone(), Arc::new(kernel)),
                Err(error) => {
                    free(&globals);
                    let error = Error::at(error.line, format!("kernel {}: {}", function.name, error.what));
                    return Err(refuse(&error, Code::INVALID_PTX));
                }
            }
        }
        Ok(driver.modules.add(|handle| Self {
            handle,
            context: context.handle,
            kernels,
            globals,
            version: parsed.version,
            target: parsed.target,
            known: Mutex::default(),
        }))
    }

    /// The handle of a kernel.
    pub(super) fn function(&self, name: &str) -> Answer<usize> {
        let mut known = lock(&self.known);
        if let Some(handle) = known.get(name) {
            return Ok(*handle);
        }
        let kernel = self.kernels.get(name).ok_or(Code::NOT_FOUND)?.clone();
        let mut handle = 0;
        driver().functions.add(|fresh| {
            handle = fresh;
            let dynamic_limit = Mutex::new((48u32 << 10).saturating_sub(kernel.shared));
            Function { context: self.context, kernel, version: self.version, target: self.target, dynamic_limit }
        });
        known.insert(name.to_owned(), handle);
        Ok(handle)
    }

    /// Gives back its variables and functions.
    pub(super) fn unload(&self) {
        for (address, _) in self.globals.values() {
            let _ = driver().memory.free(*address, false);
        }
        for handle in lock(&self.known).values() {
            let _ = driver().functions.remove(*handle);
        }
    }
}
