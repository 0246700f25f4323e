//! Calls: memory. Copies without a stream go to the stream that has no handle and are waited for.
use super::calls_stream::stream;
use super::context::{self, Context, current};
use super::copy::{self, End, Fill};
use super::pointer::{In, Out};
use super::stream::Command;
use super::{Answer, Code, calls, driver};
use std::sync::Arc;

fn allocate(context: &Context, bytes: usize) -> Answer<u64> {
    let device = driver().device(context.device as i32)?;
    driver().memory.allocate(device.ordinal, device.memory, bytes as u64, context.handle)
}

/// Gives a command to a stream, and waits for it if the call has none.
fn give(handle: Option<usize>, command: Command) -> Answer {
    let stream = stream(handle.unwrap_or(0))?;
    let number = stream.submit(command)?;
    if handle.is_none() { stream.finish(number) } else { Ok(()) }
}

fn to_device(to: u64, from: In<u8>, bytes: usize, handle: Option<usize>) -> Answer {
    current()?;
    if bytes == 0 {
        return Ok(());
    }
    copy::check(to, bytes as u64)?;
    // Memory that the driver does not know may be used again as soon as the call is over, so its bytes are taken now.
    let pinned = handle.is_some() && copy::is_pinned(from.address(), bytes as u64);
    let from = if pinned { End::Host(from.address()) } else { End::Staged(Arc::new(from.bytes(bytes)?)) };
    give(handle, Command::Copy { to: End::Device(to), from, bytes: bytes as u64 })
}

fn to_host(to: In<u8>, from: u64, bytes: usize, handle: Option<usize>) -> Answer {
    current()?;
    if bytes == 0 {
        return Ok(());
    }
    copy::check(from, bytes as u64)?;
    if to.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    let command = Command::Copy { to: End::Host(to.address()), from: End::Device(from), bytes: bytes as u64 };
    let stream = stream(handle.unwrap_or(0))?;
    // Into memory that the driver does not know the call may copy itself, as the real one does.
    if !copy::is_pinned(to.address(), bytes as u64) {
        stream.not_capturing()?;
        let number = stream.submit(command)?;
        return stream.finish(number);
    }
    let number = stream.submit(command)?;
    if handle.is_none() { stream.finish(number) } else { Ok(()) }
}

fn between(to: u64, from: u64, bytes: usize, handle: Option<usize>) -> Answer {
    current()?;
    if bytes == 0 {
        return Ok(());
    }
    copy::check(to, bytes as u64)?;
    copy::check(from, bytes as u64)?;
    give(handle, Command::Copy { to: End::Device(to), from: End::Device(from), bytes: bytes as u64 })
}

fn fill(to: u64, value: u32, width: u64, count: usize, handle: Option<usize>) -> Answer {
    current()?;
    if count == 0 {
        return Ok(());
    }
    if to % width != 0 {
        return Err(Code::INVALID_VALUE);
    }
    copy::check(to, width * count as u64)?;
    give(handle, Command::Fill(Fill { to, value, width, count: count as u64 }))
}

fn peer(to: u64, to_context: usize, from: u64, from_context: usize, bytes: usize, handle: Option<usize>) -> Answer {
    for (context, address) in [(to_context, to), (from_context, from)] {
        driver().contexts.get(context).map_err(|_| Code::INVALID_CONTEXT)?.check()?;
        if bytes > 0 && !driver().memory.is_of(address, bytes as u64, context) {
            return Err(Code::INVALID_VALUE);
        }
    }
    between(to, from, bytes, handle)
}

/// Memory in the order of a stream. It is there at once; what is freed is gone when the stream comes to it.
fn allocate_in_order(out: Out<u64>, bytes: usize, handle: usize) -> Answer {
    let context = current()?;
    let stream = stream(handle)?;
    // Nodes of a graph that allocate or free are not supported.
    stream.not_capturing()?;
    let mut made = allocate(&context, bytes);
    if made == Err(Code::OUT_OF_MEMORY) && !stream.is_idle() {
        // Memory whose turn to be freed comes on this stream counts as free.
        stream.synchronize()?;
        made = allocate(&context, bytes);
    }
    out.set(made?)
}

/// The only pool of a device; its handle tells the device.
fn pool_of(device: i32) -> Answer<usize> {
    Ok(driver().device(device)?.ordinal + 0x100)
}

fn pool_device(pool: usize) -> Answer<usize> {
    let ordinal = pool.checked_sub(0x100).ok_or(Code::INVALID_VALUE)?;
    driver().device(ordinal as i32).map(|d| d.ordinal).map_err(|_| Code::INVALID_VALUE)
}

calls! {
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let context = current()?;
        let device = driver().device(context.device as i32)?;
        free.set_if((device.memory - driver().memory.used(device.ordinal)) as usize);
        total.set_if(device.memory as usize);
        Ok(())
    }

    fn cuMemAlloc_v2(out: Out<u64>, bytes: usize) {
        let context = current()?;
        out.set(allocate(&context, bytes)?)
    }

    fn cuMemFree_v2(address: u64) {
        let context = context::attached()?;
        if address == 0 {
            return Ok(());
        }
        // Freeing waits for what may still use the memory.
        let streams = driver().streams.all();
        for stream in streams.iter().filter(|s| s.context.handle == context.handle && s.is_capturing().is_none()) {
            let _ = stream.synchronize();
        }
        if let Some(null) = context.existing_null() {
            let _ = null.synchronize();
        }
        driver().memory.free(address, false)?;
        context.check()
    }

    fn cuMemAllocAsync(out: Out<u64>, bytes: usize, handle: usize) {
        allocate_in_order(out, bytes, handle)
    }

    fn cuMemAllocFromPoolAsync(out: Out<u64>, bytes: usize, pool: usize, handle: usize) {
        if pool_device(pool)? != current()?.device {
            return Err(Code::INVALID_VALUE);
        }
        allocate_in_order(out, bytes, handle)
    }

    fn cuMemFreeAsync(address: u64, handle: usize) {
        let context = context::attached()?;
        let region = driver().memory.find(address, 1).ok_or(Code::INVALID_VALUE)?;
        if region.base != address {
            return Err(Code::INVALID_VALUE);
        }
        if context.check().is_err() {
            return driver().memory.free(address, false).and(context.check());
        }
        stream(handle)?.not_capturing()?;
        give(Some(handle), Command::Free(address))
    }

    fn cuDeviceGetDefaultMemPool(pool: Out<usize>, device: i32) {
        pool.set(pool_of(device)?)
    }

    fn cuDeviceGetMemPool(pool: Out<usize>, device: i32) {
        pool.set(pool_of(device)?)
    }

    fn cuMemPoolTrimTo(pool: usize, _keep: usize) {
        pool_device(pool).map(drop)
    }

    fn cuMemPoolSetAttribute(pool: usize, attribute: i32, _value: In<u8>) {
        pool_device(pool)?;
        // Nothing is kept beyond its use, so what is said of keeping has no effect.
        if (1..=8).contains(&attribute) { Ok(()) } else { Err(Code::INVALID_VALUE) }
    }

    fn cuMemPoolGetAttribute(pool: usize, attribute: i32, value: Out<u64>) {
        let device = pool_device(pool)?;
        match attribute {
            4 => value.set(0),
            5..=8 => value.set(driver().memory.used(device)),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    fn cuMemHostAlloc(out: Out<u64>, bytes: usize, _flags: u32) {
        let context = current()?;
        out.set(driver().memory.allocate_host(bytes as u64, context.handle)?)
    }

    fn cuMemAllocHost_v2(out: Out<u64>, bytes: usize) {
        let context = current()?;
        out.set(driver().memory.allocate_host(bytes as u64, context.handle)?)
    }

    fn cuMemFreeHost(address: u64) {
        driver().memory.free(address, true)
    }

    fn cuMemHostRegister_v2(data: *mut u8, bytes: usize, _flags: u32) {
        let context = current()?;
        if data.is_null() || bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        driver().memory.register(data, bytes as u64, context.handle)
    }

    fn cuMemHostUnregister(address: u64) {
        driver().memory.free(address, true).map_err(|_| Code::HOST_MEMORY_NOT_REGISTERED)
    }

    fn cuMemHostGetDevicePointer_v2(out: Out<u64>, address: u64, _flags: u32) {
        if !copy::is_pinned(address, 1) {
            return Err(Code::INVALID_VALUE);
        }
        out.set(address)
    }

    fn cuMemcpyHtoD_v2(to: u64, from: In<u8>, bytes: usize) {
        to_device(to, from, bytes, None)
    }

    fn cuMemcpyHtoDAsync_v2(to: u64, from: In<u8>, bytes: usize, stream: usize) {
        to_device(to, from, bytes, Some(stream))
    }

    fn cuMemcpyDtoH_v2(to: In<u8>, from: u64, bytes: usize) {
        to_host(to, from, bytes, None)
    }

    fn cuMemcpyDtoHAsync_v2(to: In<u8>, from: u64, bytes: usize, stream: usize) {
        to_host(to, from, bytes, Some(stream))
    }

    fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) {
        between(to, from, bytes, None)
    }

    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) {
        between(to, from, bytes, Some(stream))
    }

    fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: usize) {
        between(to, from, bytes, Some(stream))
    }

    fn cuMemcpyPeer(to: u64, to_context: usize, from: u64, from_context: usize, bytes: usize) {
        peer(to, to_context, from, from_context, bytes, None)
    }

    fn cuMemcpyPeerAsync(to: u64, to_context: usize, from: u64, from_context: usize, bytes: usize, stream: usize) {
        peer(to, to_context, from, from_context, bytes, Some(stream))
    }

    fn cuMemsetD8_v2(to: u64, value: u8, count: usize) {
        fill(to, value.into(), 1, count, None)
    }

    fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: usize) {
        fill(to, value.into(), 1, count, Some(stream))
    }

    fn cuMemsetD16_v2(to: u64, value: u16, count: usize) {
        fill(to, value.into(), 2, count, None)
    }

    fn cuMemsetD16Async(to: u64, value: u16, count: usize, stream: usize) {
        fill(to, value.into(), 2, count, Some(stream))
    }

    fn cuMemsetD32_v2(to: u64, value: u32, count: usize) {
        fill(to, value, 4, count, None)
    }

    fn cuMemsetD32Async(to: u64, value: u32, count: usize, stream: usize) {
        fill(to, value, 4, count, Some(stream))
    }
}
