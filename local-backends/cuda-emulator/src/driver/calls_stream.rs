//! Calls: streams and events.
use super::context::{attached, current};
use super::pointer::Out;
use super::stream::{Command, Event, HostCall, Stream};
use super::{Answer, Code, calls, driver};
use std::ffi::c_void;
use std::sync::Arc;

/// The stream of a handle; 0, 1 and 2 are the one without a handle.
pub(super) fn stream(handle: usize) -> Answer<Arc<Stream>> {
    let found = if handle <= 2 { current()?.null()? } else { driver().streams.get(handle)? };
    found.context.check()?;
    Ok(found)
}

fn event(handle: usize) -> Answer<Arc<Event>> {
    driver().events.get(handle)
}

fn create(out: Out<usize>, flags: u32) -> Answer {
    let context = current()?;
    if flags > 1 {
        return Err(Code::INVALID_VALUE);
    }
    let made = driver().streams.add(|handle| Stream::new(handle, &context, flags == 0));
    if let Err(code) = made.spawn() {
        let _ = driver().streams.remove(made.handle);
        return Err(code);
    }
    out.set(made.handle)
}

calls! {
    fn cuStreamCreate(out: Out<usize>, flags: u32) {
        create(out, flags)
    }

    fn cuStreamCreateWithPriority(out: Out<usize>, flags: u32, _priority: i32) {
        create(out, flags)
    }

    fn cuStreamDestroy_v2(handle: usize) {
        let stream = driver().streams.remove(handle)?;
        stream.end(false);
        Ok(())
    }

    fn cuStreamSynchronize(handle: usize) {
        stream(handle)?.synchronize()
    }

    fn cuStreamQuery(handle: usize) {
        let stream = stream(handle)?;
        stream.not_capturing()?;
        if stream.is_idle() { Ok(()) } else { Err(Code::NOT_READY) }
    }

    fn cuStreamGetFlags(handle: usize, flags: Out<u32>) {
        flags.set(u32::from(!stream(handle)?.is_blocking()))
    }

    fn cuStreamGetCtx(handle: usize, context: Out<usize>) {
        context.set(stream(handle)?.context.handle)
    }

    fn cuStreamWaitEvent(handle: usize, of: usize, _flags: u32) {
        stream(handle)?.wait_event(&event(of)?)
    }

    fn cuLaunchHostFunc(handle: usize, call: Option<extern "C" fn(*mut c_void)>, data: usize) {
        let call = call.ok_or(Code::INVALID_VALUE)?;
        stream(handle)?.submit(Command::Host(HostCall { call, data })).map(drop)
    }

    fn cuEventCreate(out: Out<usize>, flags: u32) {
        let context = current()?;
        // 1 waits without spinning, 2 keeps no time, 4 is for other processes.
        if flags > 3 {
            return Err(Code::INVALID_VALUE);
        }
        out.set(driver().events.add(|handle| Event::new(handle, context.handle, flags & 2 == 0)).handle)
    }

    fn cuEventDestroy_v2(handle: usize) {
        driver().events.remove(handle).map(drop)
    }

    fn cuEventRecord(handle: usize, on: usize) {
        let (event, stream) = (event(handle)?, stream(on)?);
        if event.context != stream.context.handle {
            return Err(Code::INVALID_HANDLE);
        }
        stream.record(&event)
    }

    fn cuEventQuery(handle: usize) {
        let event = event(handle)?;
        attached()?.check()?;
        if event.is_complete() { Ok(()) } else { Err(Code::NOT_READY) }
    }

    fn cuEventSynchronize(handle: usize) {
        let event = event(handle)?;
        let context = driver().contexts.get(event.context).map_err(|_| Code::CONTEXT_IS_DESTROYED)?;
        event.wait(&context)
    }

    fn cuEventElapsedTime(milliseconds: Out<f32>, start: usize, end: usize) {
        let (start, end) = (event(start)?, event(end)?);
        if !start.timed || !end.timed {
            return Err(Code::INVALID_HANDLE);
        }
        let (start, end) = (start.time()?, end.time()?);
        let forth = end.saturating_duration_since(start).as_secs_f32();
        milliseconds.set((forth - start.saturating_duration_since(end).as_secs_f32()) * 1e3)
    }
}
