//! Calls: contexts and access between devices.
use super::context::{self, Context};
use super::pointer::{In, Out};
use super::{Answer, Code, calls, driver, lock};
use std::sync::atomic::Ordering;

fn create(out: Out<usize>, flags: u32, device: i32) -> Answer {
    let device = driver().device(device)?;
    let made = Context::create(device.ordinal, flags);
    context::push(made.handle);
    out.set(made.handle)
}

/// Takes the primary context of a device away, however often it is retained.
fn reset(device: i32) -> Answer {
    let primary = lock(&driver().device(device)?.primary).take();
    if let Some((context, _)) = primary {
        context.destroy();
    }
    Ok(())
}

calls! {
    fn cuDevicePrimaryCtxRetain(out: Out<usize>, device: i32) {
        let device = driver().device(device)?;
        let mut primary = lock(&device.primary);
        let (context, count) = primary.get_or_insert_with(|| (Context::create(device.ordinal, 0), 0));
        *count += 1;
        out.set(context.handle)
    }

    fn cuDevicePrimaryCtxRelease_v2(device: i32) {
        let mut primary = lock(&driver().device(device)?.primary);
        let (_, count) = primary.as_mut().ok_or(Code::INVALID_CONTEXT)?;
        *count -= 1;
        if *count == 0 {
            drop(primary);
            reset(device)?;
        }
        Ok(())
    }

    fn cuDevicePrimaryCtxReset_v2(device: i32) {
        reset(device)
    }

    fn cuDevicePrimaryCtxGetState(device: i32, flags: Out<u32>, active: Out<i32>) {
        let primary = lock(&driver().device(device)?.primary);
        flags.set(primary.as_ref().map_or(0, |(c, _)| c.flags.load(Ordering::Relaxed)))?;
        active.set(i32::from(primary.is_some()))
    }

    fn cuDevicePrimaryCtxSetFlags_v2(device: i32, flags: u32) {
        if let Some((context, _)) = &*lock(&driver().device(device)?.primary) {
            context.flags.store(flags, Ordering::Relaxed);
        }
        Ok(())
    }

    fn cuCtxCreate_v2(out: Out<usize>, flags: u32, device: i32) {
        create(out, flags, device)
    }

    fn cuCtxCreate_v3(out: Out<usize>, _affinity: In<u8>, count: i32, flags: u32, device: i32) {
        if count != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        create(out, flags, device)
    }

    fn cuCtxDestroy_v2(handle: usize) {
        let context = driver().contexts.get(handle).map_err(|_| Code::INVALID_CONTEXT)?;
        let is_primary = driver().devices().iter().any(|d| lock(&d.primary).as_ref().is_some_and(|(c, _)| c.handle == handle));
        if is_primary {
            return Err(Code::INVALID_CONTEXT);
        }
        context.destroy();
        if context::current_handle() == handle {
            context::pop()?;
        }
        Ok(())
    }

    fn cuCtxPushCurrent_v2(handle: usize) {
        driver().contexts.get(handle).map_err(|_| Code::INVALID_CONTEXT)?;
        context::push(handle);
        Ok(())
    }

    fn cuCtxPopCurrent_v2(out: Out<usize>) {
        out.set_if(context::pop()?);
        Ok(())
    }

    fn cuCtxSetCurrent(handle: usize) {
        context::set_current(handle)
    }

    fn cuCtxGetCurrent(out: Out<usize>) {
        out.set(context::current_handle())
    }

    fn cuCtxGetDevice(out: Out<i32>) {
        out.set(context::attached()?.device as i32)
    }

    fn cuCtxGetApiVersion(handle: usize, version: Out<u32>) {
        driver().contexts.get(handle).map_err(|_| Code::INVALID_CONTEXT)?;
        version.set(12020)
    }

    fn cuCtxGetFlags(flags: Out<u32>) {
        flags.set(context::attached()?.flags.load(Ordering::Relaxed))
    }

    fn cuCtxSetFlags(flags: u32) {
        context::attached()?.flags.store(flags, Ordering::Relaxed);
        Ok(())
    }

    fn cuCtxSynchronize() {
        let context = context::current()?;
        for stream in driver().streams.all().iter().filter(|s| s.context.handle == context.handle) {
            stream.synchronize()?;
        }
        match context.existing_null() {
            Some(null) => null.synchronize(),
            None => context.check(),
        }
    }

    fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) {
        context::current()?;
        least.set_if(0);
        greatest.set_if(-5);
        Ok(())
    }

    fn cuCtxEnablePeerAccess(peer: usize, flags: u32) {
        let context = context::current()?;
        let peer = driver().contexts.get(peer).map_err(|_| Code::INVALID_CONTEXT)?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if peer.device == context.device {
            return Err(Code::INVALID_DEVICE);
        }
        if lock(&driver().config).apart == 1 {
            return Err(Code::PEER_ACCESS_UNSUPPORTED);
        }
        if lock(&context.peers).insert(peer.device) { Ok(()) } else { Err(Code::PEER_ACCESS_ALREADY_ENABLED) }
    }

    fn cuCtxDisablePeerAccess(peer: usize) {
        let context = context::current()?;
        let peer = driver().contexts.get(peer).map_err(|_| Code::INVALID_CONTEXT)?;
        if lock(&context.peers).remove(&peer.device) { Ok(()) } else { Err(Code::PEER_ACCESS_NOT_ENABLED) }
    }
}
