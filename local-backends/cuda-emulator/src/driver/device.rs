//! A device: what it says of itself.
use super::config::Config;
use super::context::Context;
use super::{driver, lock};
use std::sync::{Arc, Mutex};

#[derive(Debug)]
pub(super) struct Device {
    pub(super) ordinal: usize,
    pub(super) capability: u32,
    pub(super) memory: u64,
    /// The primary context and how often it is retained.
    pub(super) primary: Mutex<Option<(Arc<Context>, u32)>>,
}

impl Device {
    pub(super) fn new(ordinal: usize, config: &Config) -> Self {
        Self { ordinal, capability: config.capability, memory: config.memory, primary: Mutex::new(None) }
    }

    /// Whether its kernels and copies may address another one's memory.
    pub(super) fn can_address(&self, other: &Device) -> bool {
        self.ordinal != other.ordinal && lock(&driver().config).apart == 0
    }

    pub(super) fn name(&self) -> String {
        format!("Emulated CUDA device (sm_{})", self.capability)
    }

    pub(super) fn pci_bus(&self) -> i32 {
        self.ordinal as i32 + 1
    }

    pub(super) fn uuid(&self) -> [u8; 16] {
        let mut uuid = *b"outboard-emu-\0\0\0";
        uuid[15] = self.ordinal as u8;
        uuid
    }

    /// Shared memory of a block that asks for more than the usual, at most (CUDA C++ Programming Guide, "Compute capabilities").
    pub(super) fn shared_optin(&self) -> u32 {
        match self.capability {
            90.. => 227 << 10,
            87 | 80 => 163 << 10,
            86 | 89 => 99 << 10,
            75 => 64 << 10,
            70 | 72 => 96 << 10,
            _ => 48 << 10,
        }
    }

    /// An attribute by its number; those that are not here are 0, as what a device does not have.
    pub(super) fn attribute(&self, number: i32) -> Option<i32> {
        if !(1..=148).contains(&number) {
            return None;
        }
        Some(match number {
            1..=3 => 1024,
            4 => 64,
            5 => i32::MAX,
            6 | 7 => 65535,
            8 => 48 << 10,
            9 => 64 << 10,
            10 => 32,
            11 => i32::MAX,
            12 | 82 => 65536,
            13 | 36 => 1_000_000,
            15 | 19 | 31 | 41 | 78 | 99 | 115 => 1,
            16 => 4,
            33 => self.pci_bus(),
            37 => 256,
            38 => 4 << 20,
            39 => {
                if self.capability == 75 {
                    1024
                } else {
                    2048
                }
            }
            40 => 2,
            75 => self.capability as i32 / 10,
            76 => self.capability as i32 % 10,
            81 => self.shared_optin() as i32 + (1 << 10),
            97 => self.shared_optin() as i32,
            106 => 16,
            _ => 0,
        })
    }
}
