//! A card of the emulator through unmodified cudarc, as a CUDA device over it does: calls of `driver::result` and `driver::sys`.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    unreachable_pub,
    missing_docs,
    reason = "each test uses a part of it"
)]

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use outboard_cuda_emulator::{Config, Counts, Emulator};
use std::collections::BTreeMap;
use std::ffi::{CString, c_void};
use std::sync::OnceLock;

pub const MEMORY: u64 = 64 << 20;

/// The emulator with two devices that take code for every architecture.
pub fn emulator() -> Emulator {
    static READY: OnceLock<Emulator> = OnceLock::new();
    *READY.get_or_init(|| {
        let emulator = Emulator::load().unwrap();
        emulator.configure(&Config { devices: 2, capability: 90, memory: MEMORY, ..Config::default() });
        // SAFETY: it only looks for the library.
        assert!(unsafe { sys::is_culib_present() });
        result::init().unwrap();
        emulator
    })
}

/// PTX that is committed.
pub fn ptx(name: &str) -> String {
    let path = format!("{}/tests/kernels/ptx/{name}.ptx", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

pub fn code(error: DriverError) -> u32 {
    error.0 as u32
}

/// A context of its own, so that a fault of one test is not another's.
pub struct Card {
    pub context: sys::CUcontext,
    pub stream: sys::CUstream,
    functions: BTreeMap<String, sys::CUfunction>,
}

impl Card {
    pub fn new(device: i32) -> Self {
        emulator();
        // SAFETY: a device that is there, and no parameters.
        let context = unsafe { result::ctx::create_v3(0, result::device::get(device).unwrap()).unwrap() };
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking).unwrap();
        Self { context, stream, functions: BTreeMap::new() }
    }

    pub fn with(device: i32, name: &str) -> Self {
        let mut card = Self::new(device);
        card.load(&ptx(name)).unwrap();
        card
    }

    pub fn current(&self) {
        // SAFETY: a context that lives as long as the card.
        unsafe { result::ctx::set_current(self.context).unwrap() }
    }

    pub fn load(&mut self, text: &str) -> Result<sys::CUmodule, DriverError> {
        let image = CString::new(text).unwrap();
        // SAFETY: text that ends with a zero, which outlives the call.
        let module = unsafe { result::module::load_data(image.as_ptr().cast()) }?;
        for line in text.lines() {
            let Some((_, name)) = line.split_once(".entry ") else { continue };
            let name = name.trim_end_matches('(').trim_end_matches("()");
            // SAFETY: a module that was just loaded.
            let function = unsafe { result::module::get_function(module, CString::new(name).unwrap()) }?;
            self.functions.insert(name.to_owned(), function);
        }
        Ok(module)
    }

    pub fn function(&self, name: &str) -> sys::CUfunction {
        *self.functions.get(name).unwrap_or_else(|| panic!("no kernel {name}"))
    }

    /// Memory that nobody has written.
    pub fn empty<T>(&self, count: usize) -> u64 {
        // SAFETY: nobody reads it before it is written, but through the driver.
        unsafe { result::malloc_sync(count * size_of::<T>()).unwrap() }
    }

    pub fn put<T: Copy>(&self, values: &[T]) -> u64 {
        let at = self.empty::<T>(values.len());
        // SAFETY: memory of this length.
        unsafe { result::memcpy_htod_sync(at, values).unwrap() };
        at
    }

    pub fn get<T: Copy + Default>(&self, at: u64, count: usize) -> Result<Vec<T>, DriverError> {
        self.finish()?;
        let mut values = vec![T::default(); count];
        // SAFETY: any bytes are a value of the types that tests use; the driver checks the range.
        unsafe { result::memcpy_dtoh_sync(&mut values, at)? };
        Ok(values)
    }

    pub fn finish(&self) -> Result<(), DriverError> {
        // SAFETY: a stream that lives as long as the card.
        unsafe { result::stream::synchronize(self.stream) }
    }

    pub fn launch(
        &self,
        name: &str,
        grid: u32,
        block: (u32, u32),
        shared: u32,
        args: &[&dyn Argument],
    ) -> Result<(), DriverError> {
        let mut args: Vec<*mut c_void> = args.iter().map(|a| (**a).place()).collect();
        let function = self.function(name);
        // SAFETY: a function that was loaded, and arguments that outlive the call, which copies them.
        unsafe { result::launch_kernel(function, (grid, 1, 1), (block.0, block.1, 1), shared, self.stream, &mut args) }
    }

    /// Runs a kernel and waits; what it counted.
    pub fn run(&self, name: &str, grid: u32, block: (u32, u32), shared: u32, args: &[&dyn Argument]) -> Counts {
        self.launch(name, grid, block, shared, args).unwrap();
        self.finish().unwrap();
        emulator().launches(name).last().expect("a launch").counts
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once.
        let _ = unsafe { sys::cuCtxDestroy_v2(self.context) };
    }
}

/// A parameter of a kernel.
pub trait Argument {
    fn place(&self) -> *mut c_void;
}

impl<T: Copy> Argument for T {
    fn place(&self) -> *mut c_void {
        std::ptr::from_ref(self).cast_mut().cast()
    }
}

/// Numbers that look random, from a seed.
pub fn numbers(count: usize, seed: u64) -> impl Iterator<Item = u64> {
    let mut state = seed;
    (0..count).map(move |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    })
}

/// Between -1 and 1.
pub fn floats(count: usize, seed: u64) -> Vec<f32> {
    numbers(count, seed).map(|n| n as f32 / (1u64 << 30) as f32 - 1.0).collect()
}
