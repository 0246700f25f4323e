//! Loads and stores, each checked: inside of one allocation, aligned, initialised, no race.
use super::block::{Block, Step};
use super::region::Region;
use super::shadow::Access;
use super::step::addresses;
use super::warp::Warp;
use crate::code::lower::{LOCAL_WINDOW, SHARED_WINDOW, WINDOW};
use crate::code::op::{Address, Dst, Instr, Space};
use crate::finding::{Fault, Finding};
use crate::ptx::Ty;
use std::sync::Arc;

/// The space of a generic address, and the address in it.
fn resolve(address: u64) -> (Space, u64) {
    match address {
        a if a.wrapping_sub(SHARED_WINDOW) < WINDOW => (Space::Shared, a - SHARED_WINDOW),
        a if a.wrapping_sub(LOCAL_WINDOW) < WINDOW => (Space::Local, a - LOCAL_WINDOW),
        a => (Space::Global, a),
    }
}

fn extended(ty: Ty, bits: u64) -> u64 {
    match ty {
        Ty::S(8) => bits as i8 as u64,
        Ty::S(16) => bits as i16 as u64,
        Ty::S(32) => bits as i32 as u64,
        _ => bits,
    }
}

impl<'a> Block<'a> {
    /// Lanes by the space of their addresses; a generic one may be of any.
    pub(super) fn by_space(space: Space, at: &mut [u64; 32], lanes: u32) -> Vec<(Space, u32)> {
        if space != Space::Generic {
            return vec![(space, lanes)];
        }
        let mut found: Vec<(Space, u32)> = Vec::new();
        for lane in (0..32).filter(|l| lanes >> l & 1 == 1) {
            let (space, address) = resolve(at[lane]);
            at[lane] = address;
            match found.iter_mut().find(|(s, _)| *s == space) {
                Some((_, mask)) => *mask |= 1 << lane,
                None => found.push((space, 1 << lane)),
            }
        }
        found
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn load(
        &mut self,
        warp: &mut Warp,
        instr: &Instr,
        space: Space,
        ty: Ty,
        dst: &[Option<Dst>],
        from: &Address,
        lanes: u32,
    ) -> Step {
        let mut at = addresses(warp, from);
        let bytes = u64::from(ty.bytes()) * dst.len() as u64;
        let mut values = [0u128; 32];
        for (space, lanes) in Self::by_space(space, &mut at, lanes) {
            self.count(space, &at, lanes, bytes, false);
            for lane in (0..32).filter(|l| lanes >> l & 1 == 1) {
                values[lane] = self.read(warp, instr, space, lane, at[lane], bytes)?;
            }
        }
        let bits = ty.bits();
        for (i, dst) in dst.iter().enumerate() {
            let Some(dst) = dst else { continue };
            let mut out = [[0; 32]; 2];
            for lane in 0..32 {
                let part = (values[lane] >> (i as u32 * bits)) as u64 & (u64::MAX >> (64 - bits));
                let value = extended(ty, part);
                out[0][lane] = value as u32;
                out[1][lane] = (value >> 32) as u32;
            }
            warp.set(*dst, &out, lanes);
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn store(
        &mut self,
        warp: &mut Warp,
        instr: &Instr,
        space: Space,
        ty: Ty,
        src: &[u32],
        to: &Address,
        lanes: u32,
    ) -> Step {
        let mut at = addresses(warp, to);
        let (bits, bytes) = (ty.bits(), u64::from(ty.bytes()) * src.len() as u64);
        for (space, lanes) in Self::by_space(space, &mut at, lanes) {
            self.count(space, &at, lanes, bytes, true);
            for lane in (0..32).filter(|l| lanes >> l & 1 == 1) {
                let mut value = 0u128;
                for (i, row) in src.iter().enumerate() {
                    let part = if bits == 64 { warp.wide(*row, lane) } else { warp.rows[*row as usize][lane].into() };
                    value |= u128::from(part & (u64::MAX >> (64 - bits))) << (i as u32 * bits);
                }
                self.write(warp, instr, space, lane, at[lane], bytes, value)?;
            }
        }
        Ok(())
    }

    fn count(&mut self, space: Space, at: &[u64; 32], lanes: u32, bytes: u64, store: bool) {
        match space {
            Space::Global | Space::Generic => self.counts.global(at, lanes, bytes, store),
            Space::Shared => self.counts.shared(at, lanes, bytes),
            Space::Local => self.counts.local_requests += 1,
            Space::Param => {}
        }
    }

    fn fault(&self, warp: &Warp, lane: usize, fault: Fault, instr: &Instr, what: String) -> Option<Box<Finding>> {
        self.finding(warp, lane as u32, fault, instr.place, what)
    }

    pub(super) fn aligned(&self, warp: &Warp, instr: &Instr, lane: usize, address: u64, bytes: u64) -> Step {
        if address % bytes == 0 {
            return Ok(());
        }
        Err(self.fault(warp, lane, Fault::Misaligned, instr, format!("address {address:#x} for {bytes} bytes")))
    }

    /// The region that has all of these bytes.
    #[inline]
    pub(super) fn region(
        &self,
        warp: &mut Warp,
        instr: &Instr,
        lane: usize,
        address: u64,
        bytes: u64,
    ) -> Result<&'a Arc<Region>, Option<Box<Finding>>> {
        let memory = self.run.memory;
        if let Some(region) = memory.regions.get(warp.region)
            && region.holds(address, bytes)
        {
            return Ok(region);
        }
        if let Some(found) = memory.find(address) {
            let region = &memory.regions[found];
            if region.holds(address, bytes) && memory.allows(region) {
                warp.region = found;
                return Ok(region);
            }
            if !memory.allows(region) {
                let what =
                    format!("address {address:#x} is memory of {:?}, to which access is not enabled", region.owner);
                return Err(self.fault(warp, lane, Fault::OutOfBounds, instr, what));
            }
        }
        let before = memory.regions.partition_point(|r| r.base <= address).checked_sub(1).map(|i| &memory.regions[i]);
        let what = match before {
            Some(r) if address - r.base < r.size.saturating_add(1 << 20) => {
                format!("{bytes} bytes at offset {} of an allocation of {} bytes", address - r.base, r.size)
            }
            _ => format!("{bytes} bytes at address {address:#x}, which is in no allocation"),
        };
        Err(self.fault(warp, lane, Fault::OutOfBounds, instr, what))
    }

    /// A place in shared or local memory, or among the parameters, inside and aligned.
    pub(super) fn inside(
        &self,
        warp: &Warp,
        instr: &Instr,
        lane: usize,
        address: u64,
        bytes: u64,
        (size, name): (usize, &str),
    ) -> Result<usize, Option<Box<Finding>>> {
        self.aligned(warp, instr, lane, address, bytes)?;
        match address.checked_add(bytes) {
            Some(end) if end <= size as u64 => Ok(address as usize),
            _ => {
                let what = format!("{bytes} bytes at offset {} of {size} bytes of {name} memory", address as i64);
                Err(self.fault(warp, lane, Fault::OutOfBounds, instr, what))
            }
        }
    }

    pub(super) fn shared_size(&self) -> (usize, &'static str) {
        ((self.run.launch.kernel.shared + self.run.launch.dynamic_shared) as usize, "shared")
    }

    fn local_size(&self) -> (usize, &'static str) {
        (self.run.launch.kernel.local as usize, "local")
    }

    /// Touches shared memory and notes what is wrong with that.
    pub(super) fn touch(&mut self, warp: &Warp, instr: &Instr, lane: usize, at: usize, bytes: usize, access: Access) {
        let Some((fault, other)) = self.shadow.access(warp.index, at, bytes, access) else { return };
        let what = || {
            let how = if access == Access::Read { "read" } else { "written" };
            match fault {
                Fault::Race => format!("shared byte {at} is {how} with no barrier after what warp {other} did there"),
                Fault::MissingWait => {
                    format!("shared byte {at} is {how} before a cp.async of warp {other} to it was waited for")
                }
                _ => format!("shared byte {at} is {how}, which nobody has written"),
            }
        };
        self.note(warp, lane as u32, fault, instr.place, what);
    }

    pub(super) fn read(
        &mut self,
        warp: &mut Warp,
        instr: &Instr,
        space: Space,
        lane: usize,
        address: u64,
        bytes: u64,
    ) -> Result<u128, Option<Box<Finding>>> {
        match space {
            Space::Global | Space::Generic => {
                self.aligned(warp, instr, lane, address, bytes)?;
                let region = self.region(warp, instr, lane, address, bytes)?;
                if !region.is_written(address, bytes) {
                    let what = || {
                        format!(
                            "{bytes} bytes at offset {} of an allocation of {} bytes",
                            address - region.base,
                            region.size
                        )
                    };
                    self.note(warp, lane as u32, Fault::Uninitialised, instr.place, what);
                }
                Ok(region.load(address, bytes))
            }
            Space::Shared => {
                let at = self.inside(warp, instr, lane, address, bytes, self.shared_size())?;
                self.touch(warp, instr, lane, at, bytes as usize, Access::Read);
                Ok(value_of(&self.shared[at..at + bytes as usize]))
            }
            Space::Local => {
                let (size, _) = self.local_size();
                let at = self.inside(warp, instr, lane, address, bytes, self.local_size())? + lane * size;
                if warp.local_written[at..at + bytes as usize].contains(&false) {
                    let what = || format!("local byte {address} is read, which nobody has written");
                    self.note(warp, lane as u32, Fault::Uninitialised, instr.place, what);
                }
                Ok(value_of(&warp.local[at..at + bytes as usize]))
            }
            Space::Param => {
                let params = &self.run.launch.params;
                let at = self.inside(warp, instr, lane, address, bytes, (params.len(), "parameter"))?;
                Ok(value_of(&params[at..at + bytes as usize]))
            }
        }
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn write(
        &mut self,
        warp: &mut Warp,
        instr: &Instr,
        space: Space,
        lane: usize,
        address: u64,
        bytes: u64,
        value: u128,
    ) -> Step {
        match space {
            Space::Shared => {
                let at = self.inside(warp, instr, lane, address, bytes, self.shared_size())?;
                self.touch(warp, instr, lane, at, bytes as usize, Access::Write);
                self.shared[at..at + bytes as usize].copy_from_slice(&value.to_le_bytes()[..bytes as usize]);
            }
            Space::Local => {
                let (size, _) = self.local_size();
                let at = self.inside(warp, instr, lane, address, bytes, self.local_size())? + lane * size;
                warp.local[at..at + bytes as usize].copy_from_slice(&value.to_le_bytes()[..bytes as usize]);
                warp.local_written[at..at + bytes as usize].fill(true);
            }
            _ => {
                self.aligned(warp, instr, lane, address, bytes)?;
                let region = self.region(warp, instr, lane, address, bytes)?;
                self.writable(warp, instr, lane, region)?;
                region.store(address, bytes, value);
            }
        }
        Ok(())
    }

    pub(super) fn writable(&self, warp: &Warp, instr: &Instr, lane: usize, region: &Region) -> Step {
        if region.read_only {
            return Err(self.fault(warp, lane, Fault::ReadOnly, instr, "constant memory is written".into()));
        }
        Ok(())
    }
}

/// Up to 16 bytes as a number.
pub(super) fn value_of(bytes: &[u8]) -> u128 {
    let mut all = [0; 16];
    all[..bytes.len()].copy_from_slice(bytes);
    u128::from_le_bytes(all)
}
