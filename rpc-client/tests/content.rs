//! Weights as content, between this process and servers in it.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod common;
#[path = "common/proxy.rs"]
#[allow(unreachable_pub)]
mod proxy;

use common::{WAIT, buffer, endpoint, f32s, read};
use outboard_core::Host;
use outboard_core::device::Bytes;
use outboard_core::*;
use outboard_host::MemoryBudget;
use outboard_reference::reference_device;
use outboard_rpc_client::{ClientOptions, Endpoint, RemoteDevice, connect};
use outboard_rpc_server::{BlobOptions, Blobs, Limits, Server, ServerConfig, Trust};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

fn server_with(options: &BlobOptions) -> Server {
    let host = Host::new();
    let budget = MemoryBudget::new(Some(common::MEMORY));
    let devices = ["REF0", "REF1"].map(|name| reference_device(&host, name, &budget)).to_vec();
    let config = ServerConfig {
        addr: "127.0.0.1:0".parse().unwrap(),
        devices,
        limits: Limits::default(),
        trust: Trust::default(),
    };
    let blobs = Blobs::open(options).unwrap();
    assert!(blobs.wait_for_models(WAIT));
    Server::start_with(config, Some(blobs)).unwrap()
}

fn server(cache: &Path) -> Server {
    server_with(&BlobOptions { cache: Some(cache.to_owned()), ..BlobOptions::default() })
}

fn devices(server: &Server) -> Vec<Arc<dyn Device>> {
    connect(&[endpoint(server)], &ClientOptions::default()).unwrap()
}

/// Bytes that no other seed gives.
fn bytes(seed: u32, len: usize) -> Bytes {
    let mut state = seed.wrapping_mul(2654435761) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.to_le_bytes()
    };
    let mut out: Vec<u8> = std::iter::repeat_with(&mut next).take(len / 4 + 1).flatten().collect();
    out.truncate(len);
    out.into()
}

/// Sizes around all borders: what is no blob, what is inline otherwise, parts and chunks.
const SIZES: [usize; 9] = [1, 4095, 4096, 65_536, 65_537, 1 << 20, (1 << 20) + 1, 5 << 20, 9_000_001];

fn tensors() -> Vec<Bytes> {
    (0..).zip(SIZES).map(|(i, len)| bytes(i, len)).collect()
}

fn digest(data: &[u8]) -> Digest {
    Digest(*blake3::hash(data).as_bytes())
}

/// A place for the bytes on a device.
fn content(device: &Arc<dyn Device>, data: &Bytes) -> Content {
    Content { dst: buffer(device, data.len() as u64), data: data.clone(), digest: Arc::default() }
}

/// Places for all of them.
fn all_of(data: &[Bytes], device: &Arc<dyn Device>) -> DeviceContents {
    DeviceContents { device: device.clone(), contents: data.iter().map(|data| content(device, data)).collect() }
}

/// What one upload did.
struct Outcome {
    slices: Vec<Slice>,
    sent: u64,
    result: Result<()>,
}

/// Uploads the tensors to one device, into one buffer.
fn upload_with(device: &Arc<dyn Device>, data: &[Bytes], known: &[Option<Digest>]) -> Outcome {
    let whole = buffer(device, data.iter().map(|d| d.len() as u64 + 64).sum());
    let mut at = 0;
    let mut slices = Vec::new();
    let mut contents = Vec::new();
    for (i, data) in data.iter().enumerate() {
        let dst = whole.part(at, data.len() as u64).unwrap();
        at += data.len() as u64 + 64;
        slices.push(dst.clone());
        let cell = Arc::new(OnceLock::new());
        known.get(i).copied().flatten().into_iter().for_each(|d| cell.set(d).unwrap());
        contents.push(Content { dst, data: data.clone(), digest: cell });
    }
    let (before, done) = (sent(device), AtomicU64::new(0));
    let batch = [DeviceContents { device: device.clone(), contents }];
    let result = device.content().unwrap().upload(&batch, &|n| _ = done.fetch_add(n, Ordering::Relaxed));
    if result.is_ok() {
        assert_eq!(done.into_inner(), data.iter().map(|d| d.len() as u64).sum::<u64>());
    }
    Outcome { slices, sent: sent(device) - before, result }
}

/// Bytes sent to a device's server, once they stay the same for a while: a thread counts what it has written behind the write, when the
/// server may have it already.
fn sent(device: &Arc<dyn Device>) -> u64 {
    let stats = || RemoteDevice::of(device.as_ref()).unwrap().net_stats().sent_bytes;
    let (mut last, mut same) = (stats(), 0);
    while same < 3 {
        std::thread::sleep(Duration::from_millis(10));
        let now = stats();
        same = if now == last { same + 1 } else { 0 };
        last = now;
    }
    last
}

/// Uploads and checks what has arrived; gives the bytes sent.
fn upload(device: &Arc<dyn Device>, data: &[Bytes]) -> u64 {
    let outcome = upload_with(device, data, &[]);
    outcome.result.unwrap();
    let queue = device.queue().unwrap();
    for (slice, data) in outcome.slices.iter().zip(data) {
        assert!(read(queue.as_ref(), slice) == data[..], "{} bytes are not what was sent", data.len());
    }
    outcome.sent
}

fn total(data: &[Bytes]) -> u64 {
    data.iter().map(|d| d.len() as u64).sum()
}

/// Files in a cache directory: blobs, and others.
fn files(dir: &Path) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let all = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    let mut parts: (Vec<_>, Vec<_>) =
        all.partition(|p| p.file_name().unwrap().to_str().unwrap().parse::<Digest>().is_ok());
    parts.0.sort();
    parts
}

fn kept(dir: &Path, data: &Bytes) -> PathBuf {
    dir.join(digest(data).to_string())
}

/// Waits until all blobs have their names.
fn settled(dir: &Path, count: usize) {
    let end = std::time::Instant::now() + WAIT;
    while files(dir).0.len() != count || !files(dir).1.is_empty() {
        assert!(std::time::Instant::now() < end, "{count} blobs were expected: {:?}", files(dir));
        std::thread::sleep(Duration::from_millis(5));
    }
}

const BLOBS: usize = 7;

#[test]
fn what_a_server_has_is_not_sent_again() {
    let dir = tempfile::tempdir().unwrap();
    let data = tensors();
    {
        let server = server(dir.path());
        let device = devices(&server).remove(0);
        let cold = upload(&device, &data);
        assert!(cold > total(&data), "{cold}");
        // The same server, perhaps before the disk has all of it, and another client.
        let warm = upload(&devices(&server)[0], &data);
        assert!(warm < cold / 100, "{warm} of {cold}");
        settled(dir.path(), BLOBS);
        for path in files(dir.path()).0 {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            assert_eq!(name.parse(), Ok(digest(&fs::read(path).unwrap())));
        }
    }
    // After a restart; the other device, and digests that are known.
    let server = server(dir.path());
    let device = devices(&server).remove(1);
    let known: Vec<_> = data.iter().map(|d| Some(digest(d))).collect();
    let outcome = upload_with(&device, &data, &known);
    outcome.result.unwrap();
    assert!(outcome.sent < total(&data) / 100, "{}", outcome.sent);
    let queue = device.queue().unwrap();
    assert!(outcome.slices.iter().zip(&data).all(|(s, d)| read(queue.as_ref(), s) == d[..]));
}

#[test]
fn digests_that_had_to_be_computed_are_left_with_the_caller() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path());
    let device = devices(&server).remove(0);
    let data = bytes(1, 100_000);
    let cell = Arc::new(OnceLock::new());
    let content = Content { dst: buffer(&device, 100_000), data: data.clone(), digest: cell.clone() };
    let batch = [DeviceContents { device: device.clone(), contents: vec![content] }];
    device.content().unwrap().upload(&batch, &|_| {}).unwrap();
    assert_eq!(cell.get(), Some(&digest(&data)));
}

#[test]
fn a_server_that_keeps_nothing_gets_everything_each_time() {
    let (server, _) = common::server();
    let device = common::devices(&server).remove(0);
    let data = tensors();
    for _ in 0..2 {
        assert!(upload(&device, &data) > total(&data));
    }
    // Nothing is hashed for it.
    let cell = Arc::new(OnceLock::new());
    let content = Content { dst: buffer(&device, 100_000), data: bytes(1, 100_000), digest: cell.clone() };
    let batch = [DeviceContents { device: device.clone(), contents: vec![content] }];
    device.content().unwrap().upload(&batch, &|_| {}).unwrap();
    assert_eq!(cell.get(), None);
}

#[test]
fn a_blob_with_a_wrong_byte_is_refused_and_not_kept() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path());
    let data = tensors();
    for wrong in [2, 4, 8] {
        let device = devices(&server).remove(0);
        let mut known: Vec<_> = data.iter().map(|d| Some(digest(d))).collect();
        let mut changed = data[wrong].to_vec();
        let last = changed.len() - 1;
        changed[last] ^= 1;
        known[wrong] = Some(digest(&changed));
        let error = upload_with(&device, &data, &known).result.unwrap_err().to_string();
        assert!(error.contains(&known[wrong].unwrap().to_string()) && !error.contains('\n'), "{error}");
        assert!(error.starts_with(&endpoint(&server).to_string()), "{error}");
        // The server lives, also for this client.
        upload(&device, &data);
    }
    settled(dir.path(), BLOBS);
    for path in files(dir.path()).0 {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        assert_eq!(name.parse(), Ok(digest(&fs::read(path).unwrap())));
    }
}

#[test]
fn damaged_files_are_found_and_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path());
    let device = devices(&server).remove(0);
    let data = tensors();
    upload(&device, &data);
    settled(dir.path(), BLOBS);
    // One byte flipped at the end of a large one, one cut, one empty, one too long.
    let flipped = kept(dir.path(), &data[8]);
    let mut content = fs::read(&flipped).unwrap();
    *content.last_mut().unwrap() ^= 0x80;
    fs::write(&flipped, &content).unwrap();
    fs::write(kept(dir.path(), &data[7]), &data[7][..1000]).unwrap();
    fs::write(kept(dir.path(), &data[6]), b"").unwrap();
    fs::write(kept(dir.path(), &data[5]), [&data[5][..], b"more"].concat()).unwrap();
    let damaged: u64 = data[5..].iter().map(|d| d.len() as u64).sum();
    let sent = upload(&device, &data);
    assert!(sent > damaged && sent < damaged + total(&data[..5]), "{sent} for {damaged}");
    settled(dir.path(), BLOBS);
    assert!(data[2..].iter().all(|d| fs::read(kept(dir.path(), d)).unwrap() == d[..]));
    assert!(upload(&device, &data) < total(&data) / 100);
}

#[test]
fn the_least_recently_used_go_first() {
    let dir = tempfile::tempdir().unwrap();
    let blob: Vec<Bytes> = (0..6).map(|i| bytes(100 + i, 1_000_000)).collect();
    let options = BlobOptions { cache: Some(dir.path().into()), cache_limit: Some(3_500_000), ..Default::default() };
    let has = |i: usize| kept(dir.path(), &blob[i]).exists();
    let server = server_with(&options);
    let device = devices(&server).remove(0);
    for (i, one) in blob.iter().take(3).enumerate() {
        upload(&device, std::slice::from_ref(one));
        settled(dir.path(), i + 1);
    }
    // The oldest by far, were it not used again.
    let aged = |i: usize, seconds: u64| {
        let file = fs::File::options().write(true).open(kept(dir.path(), &blob[i])).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
    };
    (0..3).zip([500, 400, 300]).for_each(|(i, seconds)| aged(i, seconds));
    assert!(upload(&device, &blob[..1]) < 10_000);
    upload(&device, &blob[3..4]);
    settled(dir.path(), 3);
    assert_eq!([0, 1, 2, 3].map(has), [true, false, true, true]);
    // One that does not fit at all is loaded and not kept, and nothing is lost for it.
    let huge = bytes(999, 4_000_000);
    upload(&device, std::slice::from_ref(&huge));
    assert!(!kept(dir.path(), &huge).exists());
    assert_eq!([0, 2, 3].map(has), [true; 3]);
    drop((device, server));
    // A smaller limit at the next start holds at once.
    let _server = server_with(&BlobOptions { cache_limit: Some(1_500_000), ..options });
    assert_eq!(files(dir.path()).0.len(), 1);
}

#[test]
fn servers_share_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    // Room for what all clients write at the same time.
    let limit = 64 << 20;
    let options = BlobOptions { cache: Some(dir.path().into()), cache_limit: Some(limit), ..Default::default() };
    let servers = [server_with(&options), server_with(&options)];
    let sets: Vec<Vec<Bytes>> = (0..4).map(|s| (0..5).map(|i| bytes(1000 + (s + i) % 6, 1 << 20)).collect()).collect();
    std::thread::scope(|scope| {
        for (i, server) in servers.iter().enumerate() {
            for client in 0..2 {
                let sets = &sets;
                scope.spawn(move || {
                    let device = devices(server).remove(client);
                    for round in 0..6 {
                        upload(&device, &sets[(i + client + round) % sets.len()]);
                    }
                });
            }
        }
    });
    settled(dir.path(), 6);
    // What came through one of them is there for the other.
    let fresh = bytes(5000, 2 << 20);
    upload(&devices(&servers[0])[0], std::slice::from_ref(&fresh));
    settled(dir.path(), 7);
    assert!(upload(&devices(&servers[1])[0], std::slice::from_ref(&fresh)) < 10_000);
}

#[test]
fn what_a_killed_server_left_half_written_is_cleared_away() {
    let dir = tempfile::tempdir().unwrap();
    let (left, busy, other) = (".writing-1-1", ".writing-2-2", "a file of somebody else");
    for name in [left, busy, other] {
        fs::write(dir.path().join(name), b"half").unwrap();
    }
    let held = fs::File::open(dir.path().join(busy)).unwrap();
    held.lock().unwrap();
    let _server = server(dir.path());
    assert_eq!([left, busy, other].map(|name| dir.path().join(name).exists()), [false, true, true]);
}

#[test]
fn a_directory_that_takes_nothing_does_not_stop_a_load() {
    let data = tensors();
    // Gone while the server runs, as an unmounted disk is; and no room at all.
    let dir = tempfile::tempdir().unwrap();
    let gone = dir.path().join("cache");
    let without = server(&gone);
    fs::remove_dir_all(&gone).unwrap();
    let full = dir.path().join("full");
    let nothing = BlobOptions { cache: Some(full.clone()), cache_limit: Some(0), ..Default::default() };
    for server in [without, server_with(&nothing)] {
        let device = devices(&server).remove(0);
        for _ in 0..2 {
            assert!(upload(&device, &data) > total(&data));
        }
    }
    assert_eq!(files(&full), (vec![], vec![]));
    // A directory that cannot be made is said when the server starts.
    let file = dir.path().join("file");
    fs::write(&file, b"").unwrap();
    let e = Blobs::open(&BlobOptions { cache: Some(file.join("x")), ..Default::default() }).unwrap_err().to_string();
    assert!(e.starts_with("cache ") && e.contains("cannot be made"), "{e}");
}

fn gguf(path: &Path, tensors: &[(&str, &[f32])]) {
    let mut writer = outboard_gguf::GgufWriter::new();
    // One of the two files of a model: a server uses it without the other.
    writer.value("split.no", 0u16).value("split.count", 2u16).value("split.tensors.count", 100i32);
    for (name, values) in tensors {
        writer.tensor(name, DType::F32, &[values.len()], &f32s(values)).unwrap();
    }
    fs::write(path, writer.finish().unwrap()).unwrap();
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(100)).unwrap();
}

#[test]
fn a_server_uses_its_own_copy_of_a_model() {
    let dir = tempfile::tempdir().unwrap();
    let models = dir.path().join("models");
    fs::create_dir_all(models.join("sub")).unwrap();
    let values: Vec<f32> = (0..300_000).map(|i| i as f32).collect();
    let path = models.join("sub/a.gguf");
    gguf(&path, &[("small", &values[..10]), ("a", &values[..100_000]), ("b", &values)]);
    fs::write(models.join("broken.gguf"), b"GGUF and then nothing").unwrap();
    let side = dir.path().join("side");
    let options = BlobOptions { models: Some(models), digests: Some(side.clone()), ..Default::default() };
    let data = [f32s(&values[..100_000]), f32s(&values), f32s(&values[..10])];
    for start in 0..2 {
        let server = server_with(&options);
        let sent = upload(&devices(&server)[0], &data);
        assert!(sent < 10_000, "start {start}: {sent}");
        // Its digests are remembered for the next start.
        assert_eq!(fs::read_dir(&side).unwrap().count(), 1);
    }
    // A file that has changed since the server started is not believed.
    let server = server_with(&options);
    let device = devices(&server).remove(0);
    gguf(&path, &[("a", &values[..200_000])]);
    assert!(upload(&device, &data) > total(&data));
    // A wrong line in what is remembered is found when the tensor is read.
    let server = server_with(&options);
    drop(server);
    let line = fs::read_dir(&side).unwrap().next().unwrap().unwrap().path();
    let text = fs::read_to_string(&line).unwrap();
    let right = digest(&f32s(&values[..200_000])).to_string();
    assert!(text.contains(&right));
    fs::write(&line, text.replace(&right, &digest(&data[1]).to_string())).unwrap();
    let server = server_with(&options);
    let lie = [f32s(&values[..200_000])];
    let known = [Some(digest(&data[1]))];
    // The client believes it, too: the bytes that it sends are refused.
    let device = devices(&server).remove(0);
    assert!(upload_with(&device, &lie, &known).result.is_err());
    assert!(upload(&device, &lie) > total(&lie));
}

#[test]
fn devices_of_an_endpoint_share_what_is_sent() {
    let dir = tempfile::tempdir().unwrap();
    let (plain, _) = common::server();
    for server in [plain, server(dir.path())] {
        let devices = devices(&server);
        let data = tensors();
        let places: Vec<Vec<Slice>> =
            devices.iter().map(|d| data.iter().map(|data| buffer(d, data.len() as u64)).collect()).collect();
        // The first device wants the last tensor twice.
        let again = buffer(&devices[0], data[8].len() as u64);
        let mut batch: Vec<DeviceContents> = Vec::new();
        for (device, places) in devices.iter().zip(&places) {
            let content = |(dst, data): (&Slice, &Bytes)| Content {
                dst: dst.clone(),
                data: data.clone(),
                digest: Arc::default(),
            };
            let contents = places.iter().zip(&data).map(content).collect();
            batch.push(DeviceContents { device: device.clone(), contents });
        }
        batch[0].contents.push(Content { dst: again.clone(), data: data[8].clone(), digest: Arc::default() });
        let sent = || RemoteDevice::of(devices[0].as_ref()).unwrap().net_stats().sent_bytes;
        let before = sent();
        let content = devices[0].content().unwrap();
        assert!(content.together(devices[1].as_ref()));
        content.upload(&batch, &|_| {}).unwrap();
        let sent = sent() - before;
        assert!(sent < total(&data) + total(&data) / 50, "{sent} of {}", total(&data));
        for (device, places) in devices.iter().zip(&places) {
            let queue = device.queue().unwrap();
            assert!(places.iter().zip(&data).all(|(s, d)| read(queue.as_ref(), s) == d[..]));
        }
        assert!(read(devices[0].queue().unwrap().as_ref(), &again) == data[8][..]);
    }
}

/// Through a relay that sees single connections: that of the commands, and those for bulk data.
fn through(proxy: &proxy::Proxy) -> Arc<dyn Device> {
    connect(&[Endpoint::parse(&proxy.addr.to_string()).unwrap()], &ClientOptions::default()).unwrap().remove(0)
}

#[test]
fn a_load_goes_on_several_connections() {
    let dir = tempfile::tempdir().unwrap();
    let (plain, _) = common::server();
    let data: Vec<Bytes> = (0..64).map(|i| bytes(100 + i, (1 << 20) + i as usize)).collect();
    for server in [plain, server(dir.path())] {
        let proxy = proxy::Proxy::start(server.local_addr());
        let device = through(&proxy);
        upload(&device, &data);
        assert_eq!(proxy.count(), 3);
        // Again, on the same ones.
        upload(&device, &data);
        assert_eq!(proxy.count(), 3);
        // Those that nobody uses may break.
        std::thread::sleep(Duration::from_secs(1));
        (1..3).for_each(|connection| proxy.cut(connection));
        std::thread::sleep(Duration::from_secs(1));
        upload(&device, &data);
        assert!(proxy.count() > 3);
    }
}

#[test]
fn a_load_ends_when_one_of_its_connections_does() {
    let (server, _) = common::server();
    let data: Vec<Bytes> = (0..64).map(|i| bytes(100 + i, 1 << 20)).collect();
    for cut in [1, 2] {
        let proxy = proxy::Proxy::start(server.local_addr());
        let device = through(&proxy);
        let error = std::thread::scope(|scope| {
            let load = scope.spawn(|| upload_with(&device, &data, &[]).result);
            while proxy.count() < 3 {
                std::thread::yield_now();
            }
            // Both are in the middle of something.
            (1..3).for_each(|connection| proxy.allow(connection, 1 << 16));
            proxy.cut(cut);
            load.join().unwrap().unwrap_err().to_string()
        });
        assert!(error.starts_with(&proxy.addr.to_string()) && error.contains("connection"), "{error}");
    }
    // Other clients notice nothing.
    upload(&devices(&server)[0], &data);
}

#[test]
fn several_endpoints_in_one_batch() {
    let dir = tempfile::tempdir().unwrap();
    let servers = [server(dir.path()), common::server().0];
    let devices = connect(&servers.each_ref().map(endpoint), &ClientOptions::default()).unwrap();
    let data = tensors();
    let mut batch = Vec::new();
    for device in &devices {
        batch.push(all_of(&data, device));
    }
    devices[0].content().unwrap().upload(&batch, &|_| {}).unwrap();
    for DeviceContents { device, contents } in &batch {
        let queue = device.queue().unwrap();
        assert!(contents.iter().all(|c| read(queue.as_ref(), &c.dst) == c.data[..]));
    }
    // One of them gone: an error that names it, and no hang.
    let mut servers = servers;
    servers[1].stop();
    let error = devices[0].content().unwrap().upload(&batch, &|_| {}).unwrap_err().to_string();
    assert!(error.contains(&endpoint(&servers[1]).to_string()), "{error}");
}

/// Uploads the tensors to both devices as one batch, the second's in the opposite order, and checks what has arrived.
fn upload_to_both(devices: &[Arc<dyn Device>; 2], data: &[Bytes]) {
    let mut batch = Vec::new();
    let mut there = Vec::new();
    for (i, device) in devices.iter().enumerate() {
        let mut contents = Vec::new();
        let digests: Vec<_> = data.iter().map(|_| Arc::new(OnceLock::new())).collect();
        let mut order: Vec<_> = data.iter().zip(digests).collect();
        if i == 1 {
            order.reverse();
        }
        for (data, digest) in order {
            // Twice on the second device, the second time behind the first.
            for _ in 0..=i {
                let dst = buffer(device, data.len() as u64);
                there.push((device.clone(), dst.clone(), data.clone()));
                contents.push(Content { dst, data: data.clone(), digest: digest.clone() });
            }
        }
        batch.push(DeviceContents { device: device.clone(), contents });
    }
    let done = AtomicU64::new(0);
    let [first, _] = devices;
    first.content().unwrap().upload(&batch, &|n| _ = done.fetch_add(n, Ordering::Relaxed)).unwrap();
    assert_eq!(done.into_inner(), 3 * total(data));
    for (device, slice, data) in there {
        let queue = device.queue().unwrap();
        assert!(read(queue.as_ref(), &slice) == data[..], "{} bytes on {}", data.len(), device.info().id);
    }
}

fn sent_by(devices: &[Arc<dyn Device>; 2]) -> (u64, u64) {
    let stats = devices.each_ref().map(|d| RemoteDevice::of(d.as_ref()).unwrap().net_stats());
    let [a, b] = stats;
    (a.sent_bytes + b.sent_bytes, a.peer_bytes + b.peer_bytes)
}

fn first_of_each(endpoints: [Endpoint; 2]) -> [Arc<dyn Device>; 2] {
    let all = connect(&endpoints, &ClientOptions::default()).unwrap();
    let of = |e: &Endpoint| all.iter().find(|d| RemoteDevice::of(d.as_ref()).unwrap().endpoint() == e).unwrap().clone();
    endpoints.each_ref().map(of)
}

#[test]
fn servers_that_wait_for_each_other_end_a_load_that_fails() {
    let data: Vec<Bytes> = (0..48).map(|i| bytes(100 + i, 1 << 20)).collect();
    for silent in [&[0, 1][..], &[0], &[1]] {
        let servers = [common::server().0, common::server().0];
        let proxies = servers.each_ref().map(|server| proxy::Proxy::start(server.local_addr()));
        let devices = first_of_each(proxies.each_ref().map(|p| Endpoint::parse(&p.addr.to_string()).unwrap()));
        let batch = devices.each_ref().map(|device| all_of(&data, device));
        let done = AtomicU64::new(0);
        let (error, took) = std::thread::scope(|scope| {
            let progress = |n| _ = done.fetch_add(n, Ordering::Relaxed);
            let load = scope.spawn(move || devices[0].content().unwrap().upload(&batch, &progress));
            while done.load(Ordering::Relaxed) < 4 << 20 {
                std::thread::yield_now();
            }
            // Each has sent the other something, and still owes it more.
            let start = Instant::now();
            silent.iter().for_each(|&i| proxies[i].go_silent());
            (load.join().unwrap().unwrap_err().to_string(), start.elapsed())
        });
        assert!(proxies.iter().any(|proxy| error.starts_with(&proxy.addr.to_string())), "{error}");
        assert!(took < WAIT, "{error}, but after {took:?}");
        println!("{silent:?}: {error}, after {took:?}");
    }
}

#[test]
fn what_two_servers_need_is_sent_once() {
    // More than what is in flight at a time, either way.
    let mut data = tensors();
    data.push(bytes(99, 50 << 20));
    data.push(bytes(98, 40 << 20));
    let mut once = 0;
    for caches in [[false, false], [true, true], [false, true]] {
        let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let servers: [Server; 2] =
            std::array::from_fn(|i| if caches[i] { server(dirs[i].path()) } else { common::server().0 });
        let devices = first_of_each(servers.each_ref().map(endpoint));
        upload_to_both(&devices, &data);
        let (sent, between) = sent_by(&devices);
        let large: u64 = data.iter().map(|d| d.len() as u64).filter(|&len| len >= 4096).sum();
        assert!(sent < total(&data) * 11 / 10, "{sent} of {} bytes, caches {caches:?}", total(&data));
        assert!((large..large * 11 / 10).contains(&between), "{between} of {large} bytes, caches {caches:?}");
        once += sent;
        // Each has kept what it has taken from the other; what both have is not sent at all.
        upload_to_both(&devices, &data);
        let (again, between_again) = sent_by(&devices);
        let expected = match caches {
            [true, true] => (0, 0),
            // The one with a cache has it, and the other gets it from there.
            [false, true] => (0, large),
            _ => (large, large),
        };
        assert!(again - sent <= expected.0 * 11 / 10 + 200_000, "{} of {}, {caches:?}", again - sent, expected.0);
        assert!(between_again - between <= expected.1 * 11 / 10, "{}, {caches:?}", between_again - between);
    }
    println!("{once} bytes in all");
}

/// A batch in which the first server gets little, and the second everything that the first has kept; checks what has arrived there and
/// gives the bytes that this process and the first server have sent.
fn load_beside_a_lender(devices: &[Arc<dyn Device>; 2], data: &[Bytes]) -> (u64, u64) {
    let [lender, borrower] = devices;
    let own = DeviceContents { device: lender.clone(), contents: vec![content(lender, &bytes(77, 5000))] };
    let batch = [own, all_of(data, borrower)];
    let (before, done) = (sent_by(devices), AtomicU64::new(0));
    lender.content().unwrap().upload(&batch, &|n| _ = done.fetch_add(n, Ordering::Relaxed)).unwrap();
    assert_eq!(done.into_inner(), total(data) + 5000);
    let queue = borrower.queue().unwrap();
    for Content { dst, data, .. } in &batch[1].contents {
        assert!(read(queue.as_ref(), dst) == data[..], "{} bytes", data.len());
    }
    let after = sent_by(devices);
    (after.0 - before.0, after.1 - before.1)
}

#[test]
fn what_a_server_has_kept_it_lends_to_others() {
    let mut data = tensors();
    // More than one batch.
    data.extend((90..94).map(|seed| bytes(seed, 30 << 20)));
    let large: u64 = data.iter().map(|d| d.len() as u64).filter(|&len| len >= 4096).sum();
    for keeps in [true, false] {
        let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let [lending, borrowing] = dirs.each_ref().map(|d| d.path());
        let servers = [server(lending), if keeps { server(borrowing) } else { common::server().0 }];
        upload(&devices(&servers[0])[0], &data);
        settled(lending, BLOBS + 4);
        let (sent, between) = load_beside_a_lender(&first_of_each(servers.each_ref().map(endpoint)), &data);
        assert!(sent < 300_000, "{sent} of {} bytes were sent, keeps {keeps}", total(&data));
        assert!((large..large * 11 / 10).contains(&between), "{between} of {large} bytes, keeps {keeps}");
        if keeps {
            // And what it was given it has now itself.
            settled(borrowing, BLOBS + 4);
            let (_, again) = load_beside_a_lender(&first_of_each(servers.each_ref().map(endpoint)), &data);
            assert_eq!(again, 0);
        }
    }
}

#[test]
fn what_a_server_cannot_lend_is_sent() {
    let data = tensors();
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let servers = dirs.each_ref().map(|d| server(d.path()));
    upload(&devices(&servers[0])[0], &data);
    settled(dirs[0].path(), BLOBS);
    // A file that is not any more what it was.
    let damaged = kept(dirs[0].path(), &data[8]);
    let mut content = fs::read(&damaged).unwrap();
    content[12345] ^= 1;
    fs::write(&damaged, content).unwrap();
    let both = first_of_each(servers.each_ref().map(endpoint));
    let (sent, _) = load_beside_a_lender(&both, &data);
    assert!(sent > SIZES[8] as u64 && sent < SIZES[8] as u64 + 300_000, "{sent}");
    drop(both);
    // No memory to spare.
    let dir = tempfile::tempdir().unwrap();
    let fresh = server(dir.path());
    let both = first_of_each([endpoint(&servers[0]), endpoint(&fresh)]);
    let free = both[0].memory().unwrap().free;
    let _all = both[0].alloc(free - 8192, Usage::Any).unwrap();
    let (sent, between) = load_beside_a_lender(&both, &data[5..]);
    assert!(sent > total(&data[5..]) && between == 0, "{sent}, {between}");
}
