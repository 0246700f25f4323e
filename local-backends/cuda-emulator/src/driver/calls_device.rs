//! Calls: the driver itself, devices, errors.
use super::pointer::{In, Out};
use super::{Code, calls, driver};
use std::ffi::c_char;
use std::sync::atomic::Ordering;

/// CUDA 12.2.
const VERSION: i32 = 12020;

calls! {
    fn cuInit(flags: u32) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if driver().devices().is_empty() {
            return Err(Code::NO_DEVICE);
        }
        driver().initialised.store(true, Ordering::Release);
        Ok(())
    }

    fn cuDriverGetVersion(version: Out<i32>) {
        version.set(VERSION)
    }

    fn cuDeviceGetCount(count: Out<i32>) {
        count.set(driver().devices().len() as i32)
    }

    fn cuDeviceGet(device: Out<i32>, ordinal: i32) {
        device.set(driver().device(ordinal)?.ordinal as i32)
    }

    fn cuDeviceGetName(name: Out<u8>, room: i32, device: i32) {
        name.text(&driver().device(device)?.name(), room)
    }

    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: i32) {
        bytes.set(driver().device(device)?.memory as usize)
    }

    fn cuDeviceGetUuid(uuid: Out<[u8; 16]>, device: i32) {
        uuid.set(driver().device(device)?.uuid())
    }

    fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: i32) {
        uuid.set(driver().device(device)?.uuid())
    }

    fn cuDeviceGetPCIBusId(id: Out<u8>, room: i32, device: i32) {
        id.text(&format!("0000:{:02X}:00.0", driver().device(device)?.pci_bus()), room)
    }

    fn cuDeviceGetByPCIBusId(device: Out<i32>, id: In<u8>) {
        let wanted = id.text()?.to_ascii_uppercase();
        let found = driver().devices().iter().find(|d| wanted.ends_with(&format!("{:02X}:00.0", d.pci_bus())));
        device.set(found.ok_or(Code::INVALID_DEVICE)?.ordinal as i32)
    }

    fn cuDeviceGetAttribute(value: Out<i32>, attribute: i32, device: i32) {
        let device = driver().device(device)?;
        value.set(device.attribute(attribute).ok_or(Code::INVALID_VALUE)?)
    }

    fn cuDeviceCanAccessPeer(can: Out<i32>, device: i32, peer: i32) {
        let (device, peer) = (driver().device(device)?, driver().device(peer)?);
        can.set(i32::from(device.can_address(peer)))
    }

    fn cuDeviceGetP2PAttribute(value: Out<i32>, attribute: i32, device: i32, peer: i32) {
        let (device, peer) = (driver().device(device)?, driver().device(peer)?);
        // Access and atomics are there, arrays and ranks are not told apart.
        value.set(i32::from(device.can_address(peer) && (attribute == 2 || attribute == 3)))
    }

    fn cuGetErrorName(code: u32, name: Out<*const c_char>) {
        name.set(Code(code).words().ok_or(Code::INVALID_VALUE)?.0.as_ptr())
    }

    fn cuGetErrorString(code: u32, text: Out<*const c_char>) {
        text.set(Code(code).words().ok_or(Code::INVALID_VALUE)?.1.as_ptr())
    }
}
