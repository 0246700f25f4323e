//! The way of tokens through devices: which device has which part of a model.
//!
//! [`crate::split::split`] makes a route. Placement, micro-batches, predictions and reports ask it what lies where and what crosses
//! from device to device.

use crate::arch::net::ModelPart;
use crate::parts::{Part, Parts};
use crate::pipeline::Pipeline;
use crate::work::Work;
use outboard_core::Costs;
use std::collections::BTreeSet;

/// The device of each section of a model. The embedding is with the first section, the head with the last one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Route {
    homes: Vec<usize>,
}

impl Route {
    /// A route by the device of each section, in their order.
    pub fn new(homes: Vec<usize>) -> Route {
        Route { homes }
    }

    /// The device of each section.
    pub fn homes(&self) -> &[usize] {
        &self.homes
    }

    /// The device with the embedding.
    pub fn first(&self) -> usize {
        self.homes.first().copied().unwrap_or(0)
    }

    /// The device with the head.
    pub fn last(&self) -> usize {
        self.homes.last().copied().unwrap_or(0)
    }

    /// The device of a part.
    pub fn device_of(&self, part: ModelPart) -> usize {
        match part {
            ModelPart::Embedding => self.first(),
            ModelPart::Section(i) => self.homes.get(i).copied().unwrap_or(self.last()),
            ModelPart::Head => self.last(),
        }
    }

    /// The devices that have a part.
    pub fn devices(&self) -> BTreeSet<usize> {
        self.homes.iter().copied().collect()
    }

    /// Whether one of several devices has the embedding and the head.
    pub fn is_ring(&self) -> bool {
        self.first() == self.last() && self.devices().len() > 1
    }

    /// The pairs of devices, from and to, between which a token passes in this order: the sampled id goes from the last device to the first.
    pub fn hops(&self) -> Vec<(usize, usize)> {
        let behind = self.homes.iter().skip(1).chain(self.homes.first());
        self.homes.iter().copied().zip(behind.copied()).filter(|(from, to)| from != to).collect()
    }

    /// Bytes of weights that a device reads for a token.
    pub fn read_bytes(&self, parts: &Parts, device: usize) -> u64 {
        let first = if self.first() == device { parts.first.read_bytes } else { 0 };
        let last = if self.last() == device { parts.last.read_bytes } else { 0 };
        first + self.sections_on(parts, device).map(|section| section.read_bytes).sum::<u64>() + last
    }

    /// What a token of a prompt takes in the sections of a device.
    pub fn work(&self, parts: &Parts, device: usize) -> Work {
        self.sections_on(parts, device).map(|section| section.work).sum()
    }

    /// The sections of a device.
    pub fn sections_on<'p>(&'p self, parts: &'p Parts, device: usize) -> impl Iterator<Item = &'p Part> {
        self.homes.iter().zip(&parts.sections).filter(move |(home, _)| **home == device).map(|(_, section)| section)
    }

    /// Layers of a device: first and last of those that follow one another. A layer whose sections are on several devices counts to that of
    /// its first section, which has its part of the cache.
    pub fn layers_on(&self, parts: &Parts, device: usize) -> Vec<(usize, usize)> {
        let mut ranges: Vec<(usize, usize)> = Vec::new();
        let mut before = None;
        for (section, &home) in parts.sections.iter().zip(&self.homes) {
            let begins = before.replace(section.layer) != Some(section.layer);
            if !begins || home != device {
                continue;
            }
            match ranges.last_mut().filter(|(_, last)| last + 1 == section.layer) {
                Some((_, last)) => *last = section.layer,
                None => ranges.push((section.layer, section.layer)),
            }
        }
        ranges
    }

    /// Layers that are on several devices, with these devices in order.
    pub fn divided_layers(&self, parts: &Parts) -> Vec<(usize, Vec<usize>)> {
        let mut layers: Vec<(usize, Vec<usize>)> = Vec::new();
        for (section, &home) in parts.sections.iter().zip(&self.homes) {
            match layers.last_mut() {
                Some((layer, devices)) if *layer == section.layer => devices.push(home),
                _ => layers.push((section.layer, vec![home])),
            }
        }
        layers.iter_mut().for_each(|(_, devices)| devices.dedup());
        layers.retain(|(_, devices)| devices.len() > 1);
        layers
    }

    /// The pipeline that micro-batches of a prompt pass, where devices have these costs. What only the last token of a prompt needs, as the
    /// head, is no part of it.
    pub fn pipeline(&self, parts: &Parts, costs: impl Fn(usize) -> Option<Costs>) -> Pipeline {
        let working = parts.sections.iter().zip(&self.homes).filter(|(section, _)| section.work != Work::default());
        let mut devices: Vec<usize> = working.map(|(_, &home)| home).collect();
        devices.dedup();
        let ring = devices.len() > 1 && devices.first() == devices.last();
        devices.truncate(devices.len() - usize::from(ring));
        let costs = devices.iter().filter_map(|&d| costs(d)).collect();
        Pipeline { devices, costs, ring }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two sections a layer, of which the last one has nothing to do in a prompt.
    fn parts(layers: usize) -> Parts {
        let work = Work { token: 1.0, context: 0.0 };
        let section = |i: usize| Part { read_bytes: 10, work, layer: i / 2, ..Part::default() };
        let mut sections: Vec<Part> = (0..2 * layers).map(section).collect();
        if let Some(last) = sections.last_mut() {
            last.work = Work::default();
        }
        let last = Part { read_bytes: 5, ..Part::default() };
        Parts {
            sections,
            first: Part { read_bytes: 1, ..Part::default() },
            last,
            tied_bytes: 0,
            run_rows: 7.0,
            sequences: 1,
            n_ctx: 8,
            rows: 128,
        }
    }

    #[test]
    fn a_ring_comes_back_to_its_first_device() {
        let (parts, ring) = (parts(4), Route::new(vec![1, 0, 0, 0, 2, 2, 1, 1]));
        assert!(ring.is_ring() && ring.devices().len() == 3);
        assert_eq!(ring.hops(), [(1, 0), (0, 2), (2, 1)]);
        assert_eq!((ring.read_bytes(&parts, 1), ring.read_bytes(&parts, 2)), (1 + 30 + 5, 20));
        assert_eq!(ring.work(&parts, 1).token, 2.0);
        assert_eq!(ring.layers_on(&parts, 1), [(0, 0), (3, 3)]);
        assert_eq!(ring.layers_on(&parts, 0), [(1, 1)]);
        assert_eq!(ring.divided_layers(&parts), [(0, vec![1, 0])]);
        let pipeline = ring.pipeline(&parts, |_| Some(Costs::default()));
        assert_eq!((pipeline.devices, pipeline.costs.len(), pipeline.ring), (vec![1, 0, 2], 3, true));
    }

    #[test]
    fn a_line_ends_on_another_device() {
        let (parts, line) = (parts(2), Route::new(vec![0, 0, 0, 1]));
        assert!(!line.is_ring());
        assert_eq!(line.hops(), [(0, 1), (1, 0)]);
        let pipeline = line.pipeline(&parts, |_| Some(Costs::default()));
        assert_eq!((pipeline.devices, pipeline.ring), (vec![0], false), "the second has nothing to do in a prompt");
        assert_eq!(Route::new(vec![0, 0, 1, 2, 2]).hops(), [(0, 1), (1, 2), (2, 0)]);
        assert_eq!(Route::default().hops(), []);
        let one = Route::new(vec![0; 4]);
        assert!(!one.is_ring() && one.hops().is_empty() && one.divided_layers(&parts).is_empty());
    }
}
