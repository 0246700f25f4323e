//! Calls: modules, functions, launches.
use super::context::current;
use super::launch::{self, Shape};
use super::module::{Function, Module};
use super::pointer::{In, Out};
use super::stream::Command;
use super::{Answer, Code, calls, driver, lock};
use std::sync::Arc;

/// Warps that a multiprocessor holds, for the occupancy.
const WARPS: u32 = 64;

fn load(out: Out<usize>, image: In<u8>) -> Answer {
    let context = current()?;
    out.set(Module::load(&context, &image.text()?)?.handle)
}

pub(super) fn function(handle: usize) -> Answer<Arc<Function>> {
    driver().functions.get(handle)
}

fn launched(handle: usize, shape: Shape, stream: usize, params: In<In<u8>>, extra: In<usize>) -> Answer {
    let function = function(handle)?;
    let stream = super::calls_stream::stream(stream)?;
    if function.context != stream.context.handle {
        return Err(Code::INVALID_HANDLE);
    }
    let params = launch::parameters(&function, params, extra)?;
    let kernel = launch::prepare(&function, shape, params)?;
    stream.submit(Command::Kernel(Arc::new(kernel))).map(drop)
}

/// `CUlaunchConfig`; attributes of a launch are not supported.
#[derive(Clone, Copy)]
#[repr(C)]
struct LaunchConfig {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: usize,
    attributes: usize,
    attribute_count: u32,
}

calls! {
    fn cuModuleLoadData(out: Out<usize>, image: In<u8>) {
        load(out, image)
    }

    fn cuModuleLoadDataEx(out: Out<usize>, image: In<u8>, _count: u32, _options: In<u8>, _values: In<u8>) {
        load(out, image)
    }

    fn cuModuleUnload(handle: usize) {
        let module = driver().modules.remove(handle)?;
        module.unload();
        Ok(())
    }

    fn cuModuleGetFunction(out: Out<usize>, module: usize, name: In<u8>) {
        current()?;
        out.set(driver().modules.get(module)?.function(&name.text()?)?)
    }

    fn cuModuleGetGlobal_v2(address: Out<u64>, bytes: Out<usize>, module: usize, name: In<u8>) {
        current()?;
        let module = driver().modules.get(module)?;
        let &(at, size) = module.globals.get(&name.text()?).ok_or(Code::NOT_FOUND)?;
        address.set_if(at);
        bytes.set_if(size as usize);
        Ok(())
    }

    fn cuFuncGetAttribute(value: Out<i32>, attribute: i32, handle: usize) {
        let function = function(handle)?;
        let kernel = &function.kernel;
        value.set(match attribute {
            0 => kernel.max_threads as i32,
            1 => kernel.shared as i32,
            2 | 7 | 9 => 0,
            3 => kernel.local as i32,
            // Registers of the hardware are the assembler's choice; those of PTX are an upper bound.
            4 => kernel.rows.min(255) as i32,
            5 => function.version as i32,
            6 => function.target as i32,
            8 => *lock(&function.dynamic_limit) as i32,
            _ => return Err(Code::INVALID_VALUE),
        })
    }

    fn cuFuncSetAttribute(handle: usize, attribute: i32, value: i32) {
        let function = function(handle)?;
        let device = driver().device(current()?.device as i32)?;
        match (attribute, u32::try_from(value)) {
            (8, Ok(bytes)) if bytes.saturating_add(function.kernel.shared) <= device.shared_optin() => {
                *lock(&function.dynamic_limit) = bytes;
                Ok(())
            }
            (9, _) => Ok(()),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    fn cuFuncSetCacheConfig(handle: usize, _config: u32) {
        function(handle).map(drop)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: Out<i32>, handle: usize, threads: i32, shared: usize) {
        let function = function(handle)?;
        let device = driver().device(current()?.device as i32)?;
        let threads = u32::try_from(threads).ok().filter(|t| *t > 0).ok_or(Code::INVALID_VALUE)?;
        let by_shared = device.shared_optin() as usize / (function.kernel.shared as usize + shared).max(1);
        blocks.set((WARPS / threads.div_ceil(32)).min(by_shared.min(16) as u32) as i32)
    }

    fn cuLaunchKernel(
        handle: usize, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared: u32, stream: usize,
        params: In<In<u8>>, extra: In<usize>,
    ) {
        let shape = Shape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared };
        launched(handle, shape, stream, params, extra)
    }

    fn cuLaunchKernelEx(config: In<LaunchConfig>, handle: usize, params: In<In<u8>>, extra: In<usize>) {
        let config = config.get(0)?;
        if config.attribute_count != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        let shape = Shape { grid: config.grid, block: config.block, shared: config.shared };
        launched(handle, shape, config.stream, params, extra)
    }
}
