//! Models in several files: what comes out is what comes of the same model in one, whether devices use the files in place or not.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod small;

use outboard_core::device::Bytes;
use outboard_core::{Device, Digest, Host};
use outboard_cpu::{CpuOptions, cpu_device};
use outboard_host::MemoryBudget;
use outboard_llm::gguf::{Digests, Gguf, GgufWriter, WeightRef};
use outboard_llm::{LoadOptions, Mmap, Model, PlacedModel};
use outboard_reference::reference_device;
use outboard_system::open_mapped;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const TOKENS: [u32; 5] = [1, 7, 100, 3, 3];
const FILES: usize = 3;

/// Writes a model into three files as gguf-split does, with tensors where devices can use them; gives the path of the second.
fn split(name: &str, gguf: &Gguf, alignment: u32) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("files-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = |no: usize| dir.join(format!("{name}-{:05}-of-{FILES:05}.gguf", no + 1));
    let per_file = gguf.tensors().len().div_ceil(FILES);
    for (no, tensors) in gguf.tensors().chunks(per_file).enumerate() {
        let mut w = GgufWriter::new();
        for (key, value) in gguf.metadata().filter(|_| no == 0) {
            w.value(key, value.clone());
        }
        w.alignment(alignment).value("split.no", no as u16).value("split.count", FILES as u16);
        w.value("split.tensors.count", gguf.tensors().len() as i32);
        for t in tensors {
            w.tensor(&t.name, t.layout.dtype(), &t.layout.ne(), &gguf.data(t)).unwrap();
        }
        w.write(std::fs::File::create(path(no)).unwrap()).unwrap();
    }
    path(1)
}

/// Logits of a model, and the bytes of weights that were copied.
fn logits(model: &Arc<Model>, devices: &[Arc<dyn Device>], mmap: Mmap) -> (Vec<f32>, u64) {
    let options =
        LoadOptions { n_ctx: 64, n_ubatch: 4, mmap, split: vec![1.0; devices.len()], ..LoadOptions::default() };
    let copied = AtomicU64::new(0);
    let progress = |_, total| copied.store(total, Ordering::Relaxed);
    let mut engine = PlacedModel::load(model.clone(), devices.to_vec(), &options, &progress).unwrap();
    let seq = engine.open().unwrap();
    (engine.logits(seq, &TOKENS).unwrap(), copied.into_inner())
}

fn check(name: &str) {
    let one = small::model(name);
    let (host, budget) = (Host::new(), MemoryBudget::new(None));
    let cpu = |id: &str| cpu_device(&host, id, CpuOptions::with_threads(1), &budget);
    let sets: [Vec<Arc<dyn Device>>; 2] =
        [vec![reference_device(&host, "REF", &budget)], vec![cpu("CPU0"), cpu("CPU1")]];
    let alignment = sets.iter().flatten().map(|d| d.info().alignment).max().unwrap();
    let second = split(name, one.gguf(), alignment as u32);
    let three = Arc::new(Model::new(Gguf::open(&second, open_mapped).unwrap()).unwrap());
    assert_eq!(three.gguf().files().len(), FILES);
    // The last one at an address that no device can use.
    let behind_a_byte = |path: &Path| {
        if !path.to_str().unwrap().contains("-00003-of-") {
            return open_mapped(path);
        }
        Ok(Bytes::from([vec![0], std::fs::read(path)?].concat()).slice(1..))
    };
    let crooked = Arc::new(Model::new(Gguf::open(&second, behind_a_byte).unwrap()).unwrap());
    for devices in sets {
        let (want, all) = logits(&one, &devices, Mmap::Never);
        assert!(want.iter().all(|v| v.is_finite()) && all > 0, "{name}");
        assert_eq!(logits(&three, &devices, Mmap::Never), (want.clone(), all), "{name}: copies");
        assert_eq!(logits(&three, &devices, Mmap::Always), (want.clone(), 0), "{name}: in place");
        assert_eq!(logits(&crooked, &devices, Mmap::Always), (want, all), "{name}: one file cannot be used in place");
    }
    std::fs::remove_dir_all(second.parent().unwrap()).unwrap();
}

small::each!(check);

#[test]
fn digests_are_those_of_a_file() {
    let dir = split("digests", small::model("llama-dense").gguf(), 32);
    let gguf = Gguf::open(&dir, open_mapped).unwrap();
    let first_of = |file| gguf.weight(&gguf.tensors().iter().find(|t| t.file == file).unwrap().name).unwrap();
    let [first, second, last] = [0, 1, 2].map(first_of);
    let range = gguf.range(last).unwrap();
    let known = Digests::default();
    let _ = known.of(range.offset, range.len).set(Digest([7; 32]));
    // Of the last file; of the first two nothing is known.
    let model = Model::new(gguf).unwrap().with_digests(vec![Digests::default(), Digests::default(), known]);
    let known = |weight| model.digest(weight).unwrap().get().copied();
    assert_eq!([first, second, last].map(known), [None, None, Some(Digest([7; 32]))]);
    assert!(model.digest(WeightRef { file: 0, ..last }).is_err(), "no tensor of the first file");
    let _ = model.digest(first).unwrap().set(Digest([8; 32]));
    let known: Vec<_> = model.digests().iter().map(|d| d.known().iter().map(|k| k.2).collect::<Vec<_>>()).collect();
    assert_eq!(known, [vec![Digest([8; 32])], vec![], vec![Digest([7; 32])]]);
    std::fs::remove_dir_all(dir.parent().unwrap()).unwrap();
}
