//! What one client's weights may cost the others: its calls, its part of the cache, bytes that are not what they were said to be.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod common;

use common::{MEMORY, WAIT, f32s, run};
use outboard_core::Host;
use outboard_core::{DType, Digest};
use outboard_cpu::{CpuOptions, cpu_device};
use outboard_fuzz::blobs::{Sender, blob, digest, wrong};
use outboard_fuzz::raw::Stream;
use outboard_host::MemoryBudget;
use outboard_proto::blobs::Blob;
use outboard_proto::limits::{MAX_BLOBS, MIN_BLOB};
use outboard_proto::v1;
use outboard_rpc_server::{BlobOptions, Blobs, Limits, Server, ServerConfig, Tokens, Trust};
use prost::Message;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

const MB: usize = 1_000_000;
/// Tokens of two clients, which have accounts of their own.
const TOKENS: [&str; 2] = ["0123456789abcdef-first", "0123456789abcdef-second"];

/// Who may use a server.
#[derive(Clone, Copy, PartialEq)]
enum Clients {
    All,
    /// Those that show one of [`TOKENS`].
    WithTokens,
}

/// A server with CPU devices and default limits.
fn server(options: &BlobOptions, clients: Clients) -> (Server, Arc<MemoryBudget>) {
    let (host, budget) = (Host::new(), MemoryBudget::new(Some(MEMORY)));
    let devices = ["CPU0", "CPU1"].map(|name| cpu_device(&host, name, CpuOptions::with_threads(1), &budget)).to_vec();
    let tokens = (clients == Clients::WithTokens).then(|| {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("first {}\nsecond {}\n", TOKENS[0], TOKENS[1])).unwrap();
        Arc::new(Tokens::load(file.path()).unwrap())
    });
    let addr = "127.0.0.1:0".parse().unwrap();
    let config = ServerConfig { addr, devices, limits: Limits::default(), trust: Trust { tokens, ..Trust::default() } };
    (Server::start_with(config, Some(Blobs::open(options).unwrap())).unwrap(), budget)
}

fn cache(dir: &Path, limit: Option<u64>) -> BlobOptions {
    BlobOptions { cache: Some(dir.to_owned()), cache_limit: limit, ..BlobOptions::default() }
}

/// Bytes that no other seed gives.
fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut out);
    out
}

/// Puts a file with these bytes into a cache; older ones were used longer ago.
fn keep(dir: &Path, data: &[u8], seconds_ago: u64) {
    let path = kept(dir, data);
    fs::write(&path, data).unwrap();
    set_age(&path, seconds_ago);
}

fn set_age(path: &Path, seconds: u64) {
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
}

fn kept(dir: &Path, data: &[u8]) -> PathBuf {
    dir.join(digest(data).to_string())
}

fn names(dir: &Path) -> Vec<String> {
    fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
}

/// Polls until `ok`, and lets this client's connections go on meanwhile.
async fn soon(ok: impl Fn() -> bool) {
    let end = Instant::now() + WAIT;
    while !ok() {
        assert!(Instant::now() < end, "not within {WAIT:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Blobs of a cache, once nothing is being written.
async fn settled(dir: &Path) -> usize {
    soon(|| names(dir).iter().all(|name| name.parse::<Digest>().is_ok())).await;
    names(dir).len()
}

/// Whether a call has not been answered.
async fn waits(call: &mut Stream) -> bool {
    tokio::time::timeout(Duration::from_millis(1), call.next()).await.is_err()
}

/// A call that takes hours if it is let: the same blob as often as a call may name one.
fn endless(blob: Blob) -> Vec<(Blob, u64)> {
    vec![(blob, 0); MAX_BLOBS]
}

#[test]
fn calls_that_are_not_reset_hold_nobody_up() {
    const LARGE: usize = 64 << 20;
    let dir = tempfile::tempdir().unwrap();
    let (large, small) = (vec![5; LARGE], bytes(1, 5000));
    keep(dir.path(), &large, 100);
    keep(dir.path(), &small, 100);
    let (server, budget) = server(&cache(dir.path(), None), Clients::All);
    run(async {
        let addr = server.local_addr();
        let mut modest = Sender::new(addr, None, 1 << 20).await;
        assert_eq!(modest.place(&[(blob(&small), 0)]).await, Ok(vec![1]));
        let used = budget.used();
        // Of one session; of several; of both kinds.
        for (sessions, each, check) in [(1, 12, false), (6, 2, false), (6, 1, true)] {
            let (mut greedy, mut calls) = (Vec::new(), Vec::new());
            for _ in 0..sessions {
                let session = Sender::new(addr, None, LARGE as u64).await;
                for _ in 0..each {
                    let long = endless(blob(&large));
                    calls.push(if check { session.checking(&long).await } else { session.placing(&long).await });
                }
                greedy.push(session);
            }
            for call in &mut calls {
                assert!(waits(call).await);
            }
            for round in 0..3 {
                assert_eq!(modest.place(&[(blob(&small), 0)]).await, Ok(vec![1]), "{sessions} sessions, round {round}");
                assert_eq!(modest.check(&[(blob(&small), 0)]).await, Ok(vec![1]), "{sessions} sessions, round {round}");
                assert_eq!(modest.read(0, 5000).await, small);
            }
            for call in &mut calls {
                assert!(waits(call).await, "it has done 4096 times 64 MiB already");
            }
            // Once their clients have gone, they hold no memory either.
            for session in greedy {
                session.goodbye().await;
            }
            soon(|| budget.used() <= used).await;
        }
        modest.goodbye().await;
    });
}

#[test]
fn calls_of_one_client_are_limited() {
    const MOST: usize = 256;
    let dir = tempfile::tempdir().unwrap();
    let (large, small) = (vec![5; 64 << 20], bytes(1, 5000));
    keep(dir.path(), &large, 100);
    keep(dir.path(), &small, 100);
    let (server, _) = server(&cache(dir.path(), None), Clients::WithTokens);
    run(async {
        let client = |n: usize| Sender::new(server.local_addr(), Some(TOKENS[n]), 64 << 20);
        let (first, second) = (client(0).await, client(0).await);
        let (mut calls, long) = (Vec::new(), vec![(blob(&large), 0); 1024]);
        for n in 0..MOST {
            let session = if n % 2 == 0 { &first } else { &second };
            calls.push(session.placing(&long).await);
        }
        for call in &mut calls {
            assert!(waits(call).await);
        }
        let error = first.place(&[(blob(&small), 0)]).await.unwrap_err();
        assert!(error.contains("first has 256 calls about weights here already"), "{error}");
        assert_eq!(client(1).await.place(&[(blob(&small), 0)]).await, Ok(vec![1]));
        // Those that are reset count no longer.
        drop(calls);
        let end = Instant::now() + WAIT;
        let mut placed = Err(error);
        while placed.is_err() && Instant::now() < end {
            placed = first.place(&[(blob(&small), 0)]).await;
        }
        assert_eq!(placed, Ok(vec![1]));
    });
}

#[test]
fn queues_of_one_client_that_receive_blobs_are_limited() {
    const MOST: usize = 64;
    let dir = tempfile::tempdir().unwrap();
    let (server, _) = server(&cache(dir.path(), None), Clients::WithTokens);
    run(async {
        let client = |n: usize| Sender::new(server.local_addr(), Some(TOKENS[n]), 1 << 20);
        let mut sessions = [client(0).await, client(0).await, client(0).await];
        let (mut lines, data) = (Vec::new(), bytes(1, 5000));
        for n in 0..MOST {
            let line = sessions[n % 3].queue().await;
            line.announce(1, blob(&data), 0);
            line.data(1, &data[..4999]);
            lines.push(line);
        }
        let end = Instant::now() + WAIT;
        let mut error = None;
        while error.is_none() && Instant::now() < end {
            error = sessions[0].send(blob(&data), 8192, &data).await;
        }
        assert!(error.as_ref().is_some_and(|e| e.contains("has 64 queues that receive weights")), "{error:?}");
        assert_eq!(client(1).await.send(blob(&data), 0, &data).await, None);
        drop(lines);
        while error.is_some() && Instant::now() < end {
            error = sessions[0].send(blob(&data), 8192, &data).await;
        }
        assert_eq!(error, None);
    });
}

#[test]
fn a_session_may_wait_for_models_and_do_something_else() {
    let dir = tempfile::tempdir().unwrap();
    // Zeros that take no room on the disk and a minute to hash.
    let path = dir.path().join("large.gguf");
    let mut writer = outboard_gguf::GgufWriter::new();
    writer.tensor("large", DType::F32, &[1 << 10], &f32s(&[0.0; 1 << 10])).unwrap();
    let mut file = writer.finish().unwrap();
    let extent = file.windows(8).rposition(|w| w == (1u64 << 10).to_le_bytes()).unwrap();
    file[extent..extent + 8].copy_from_slice(&(1u64 << 36).to_le_bytes());
    let length = file.len() as u64 - 4096 + (4 << 36);
    fs::write(&path, &file).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len(length).unwrap();
    let options = BlobOptions { models: Some(dir.path().into()), ..BlobOptions::default() };
    let (server, _) = server(&options, Clients::All);
    run(async {
        let mut client = Sender::new(server.local_addr(), None, 64).await;
        let mut calls = Vec::new();
        for _ in 0..20 {
            calls.push(client.asking(&[wrong(5000)]).await);
        }
        for call in &mut calls {
            assert!(waits(call).await);
        }
        client.alloc(2, 64).await;
        assert!(waits(calls.last_mut().unwrap()).await, "the allocation has waited for all questions");
    });
}

/// A cache of ten megabytes with eight blobs of one each, the first the oldest.
fn nearly_full() -> (tempfile::TempDir, Vec<Vec<u8>>) {
    let dir = tempfile::tempdir().unwrap();
    let blobs: Vec<_> = (0..8).map(|i| bytes(i, MB)).collect();
    for (data, ago) in blobs.iter().zip((100..).step_by(100)) {
        keep(dir.path(), data, 10_000 - ago);
    }
    (dir, blobs)
}

#[test]
fn nothing_is_removed_for_what_has_not_come() {
    let (dir, blobs) = nearly_full();
    let (server, _) = server(&cache(dir.path(), Some(10 * MB as u64)), Clients::All);
    run(async {
        let mut client = Sender::new(server.local_addr(), None, 16 << 20).await;
        let there = || blobs.iter().map(|data| kept(dir.path(), data).exists()).collect::<Vec<_>>();
        let new = bytes(100, 5 * MB / 2);
        let mut line = client.queue().await;
        line.announce(1, blob(&new), 0);
        line.data(1, &new[..1]);
        soon(|| names(dir.path()).iter().any(|name| name.starts_with(".writing-"))).await;
        assert_eq!(there(), [true; 8], "one byte of millions has come");
        line.data(1, &new[1..new.len() - 1]);
        // Whatever length is said: nothing is removed for it.
        for (n, len) in (1..).zip([MB, 5 * MB, 9 * MB]) {
            let other = client.queue().await;
            other.announce(n, wrong(len), 3 << 20);
            other.data(n, &[0; 5000]);
            // When this is answered, the bytes before have long been taken.
            assert_eq!(client.check(&[(wrong(1), 0)]).await, Ok(vec![0]));
        }
        assert_eq!(there(), [true; 8]);
        // All of it, but not with its digest.
        let wrong = wrong(new.len());
        assert!(client.send(wrong, 4 << 20, &new).await.is_some());
        assert_eq!(there(), [true; 8]);
        // Whole and right: the oldest make room.
        line.data(1, &new[new.len() - 1..]);
        assert_eq!(line.finish().await, None);
        soon(|| kept(dir.path(), &new).exists()).await;
        assert_eq!(there(), [&[false; 1][..], &[true; 7]].concat());
    });
}

#[test]
fn small_blobs_are_not_kept_whoever_asks() {
    let dir = tempfile::tempdir().unwrap();
    let (server, _) = server(&cache(dir.path(), None), Clients::All);
    run(async {
        let mut client = Sender::new(server.local_addr(), None, 1 << 20).await;
        let small = bytes(1, MIN_BLOB as usize - 1);
        let mut line = client.queue().await;
        for n in 0..100 {
            let one = [n as u8];
            line.announce(n, blob(&one), 0);
            line.data(n, &one);
        }
        line.announce(100, blob(&small), 0);
        line.data(100, &small);
        assert_eq!(line.finish().await, None);
        assert_eq!(client.check(&[(blob(&small), 0), (blob(&small[..1]), 0)]).await, Ok(vec![3]));
        let large = bytes(2, MIN_BLOB as usize);
        assert_eq!(client.send(blob(&large), 0, &large).await, None);
        soon(|| kept(dir.path(), &large).exists()).await;
        assert_eq!(settled(dir.path()).await, 1);
    });
}

#[test]
fn what_comes_with_wrong_digests_is_soon_not_written_any_more() {
    let dir = tempfile::tempdir().unwrap();
    let (server, _) = server(&cache(dir.path(), None), Clients::WithTokens);
    run(async {
        for (n, token) in TOKENS.into_iter().enumerate() {
            let mut client = Sender::new(server.local_addr(), Some(token), 16 << 20).await;
            // The second client checks what is in its memory, as if it had come from another server.
            for round in 0..8 {
                match n {
                    0 => assert!(client.send(wrong(5000), 0, &bytes(round, 5000)).await.is_some()),
                    _ => assert_eq!(client.check(&[(wrong(5000), 0)]).await, Ok(vec![0])),
                }
            }
            // Nothing is begun: that would be seen, half sent.
            let line = client.queue().await;
            line.announce(1, blob(&bytes(8, MB)), 0);
            line.data(1, &bytes(8, MB)[..MB - 1]);
            let good = bytes(9, 5000);
            assert_eq!(client.send(blob(&good), 2 << 20, &good).await, None);
            assert_eq!(client.check(&[(blob(&good), 2 << 20)]).await, Ok(vec![1]));
            assert_eq!(names(dir.path()), [] as [String; 0], "client {n}");
            // Others are not believed less.
            if n == 0 {
                let mut other = Sender::new(server.local_addr(), Some(TOKENS[1]), 1 << 20).await;
                assert_eq!(other.send(blob(&good), 0, &good).await, None);
                soon(|| kept(dir.path(), &good).exists()).await;
                // A client that has sent a wrong one is still served.
                assert_eq!(client.place(&[(blob(&good), 0)]).await, Ok(vec![1]));
                fs::remove_file(kept(dir.path(), &good)).unwrap();
            }
        }
    });
}

#[test]
fn no_client_has_more_than_half_of_a_cache_that_others_need() {
    let dir = tempfile::tempdir().unwrap();
    let (server, _) = server(&cache(dir.path(), Some(10 * MB as u64)), Clients::WithTokens);
    run(async {
        let [flood, modest] = TOKENS.map(|token| Sender::new(server.local_addr(), Some(token), 16 << 20));
        let (mut flood, mut modest) = (flood.await, modest.await);
        let mine: Vec<_> = (0..4).map(|i| bytes(i, MB)).collect();
        for data in &mine {
            assert_eq!(modest.send(blob(data), 0, data).await, None);
        }
        settled(dir.path()).await;
        mine.iter().for_each(|data| set_age(&kept(dir.path(), data), 1000));
        let mut last = Vec::new();
        for i in 0..20 {
            last = bytes(100 + i, MB);
            assert_eq!(flood.send(blob(&last), 0, &last).await, None);
            // What is on its way to the disk cannot make room.
            settled(dir.path()).await;
        }
        assert!(mine.iter().all(|data| kept(dir.path(), data).exists()), "pushed out by another client");
        assert!(kept(dir.path(), &last).exists());
        // Whoever has less than half takes the room of the least recently used, whosever they are.
        let more = bytes(50, MB);
        assert_eq!(modest.send(blob(&more), 0, &more).await, None);
        settled(dir.path()).await;
        assert!(kept(dir.path(), &more).exists() && !mine.iter().all(|data| kept(dir.path(), data).exists()));
    });
}

const LEN: usize = (3 << 20) + 17;

/// A session with a buffer of ones that is larger than the place that comes next, and a look at it afterwards.
async fn with_ones(server: &Server) -> Sender {
    let mut client = Sender::new(server.local_addr(), None, LEN as u64 + 200).await;
    client.fill(LEN as u64 + 200, 1).await;
    client
}

async fn only_its_place_is_zero(client: &mut Sender) {
    let after = client.read(0, LEN as u64 + 200).await;
    let (before, rest) = after.split_at(100);
    let (place, behind) = rest.split_at(LEN);
    assert!(before.iter().chain(behind).all(|&b| b == 1));
    let left = place.iter().filter(|&&b| b != 0).count();
    assert_eq!(left, 0, "bytes that are not what they were said to be are left");
}

#[test]
fn bytes_that_came_with_a_wrong_digest_are_cleared() {
    let dir = tempfile::tempdir().unwrap();
    let (server, _) = server(&cache(dir.path(), None), Clients::All);
    run(async {
        let mut client = with_ones(&server).await;
        let error = client.send(wrong(LEN), 100, &bytes(1, LEN)).await.unwrap();
        assert!(error.contains("BLAKE3"), "{error}");
        only_its_place_is_zero(&mut client).await;
        // The one that is wrong, not the one behind it.
        let (first, second) = (bytes(2, 5000), bytes(3, 5000));
        let mut line = client.queue().await;
        line.announce(1, wrong(5000), 0);
        line.announce(2, blob(&second), 5000);
        line.data(1, &first);
        line.data(2, &second);
        assert!(line.finish().await.is_some());
        assert_eq!(client.read(0, 5000).await, [0; 5000]);
        // Taken, or dropped with the queue that has failed; not half of it.
        let after = client.read(5000, 5000).await;
        assert!(after == second || after.iter().all(|&b| b == 0));
        // Of another server, for all that this one knows.
        let mut client = with_ones(&server).await;
        assert_eq!(client.check(&[(wrong(LEN), 100)]).await, Ok(vec![0]));
        only_its_place_is_zero(&mut client).await;
    });
}

#[test]
fn bytes_of_a_blob_that_has_not_come_to_its_end_are_cleared() {
    let dir = tempfile::tempdir().unwrap();
    let (server, _) = server(&cache(dir.path(), None), Clients::All);
    run(async {
        let mut client = with_ones(&server).await;
        let data = bytes(1, LEN);
        let line = client.queue().await;
        line.announce(1, blob(&data), 100);
        line.data(1, &data[..2 << 20]);
        while client.read(100 + (2 << 20) - 1, 1).await != data[(2 << 20) - 1..2 << 20] {}
        drop(line);
        let (end, mut left) = (Instant::now() + WAIT, vec![1]);
        while left.iter().any(|&b| b != 0) && Instant::now() < end {
            left = client.read(100, 2 << 20).await;
        }
        only_its_place_is_zero(&mut client).await;
        assert_eq!(settled(dir.path()).await, 0);
    });
}

#[test]
fn bytes_of_a_damaged_file_are_cleared() {
    let dir = tempfile::tempdir().unwrap();
    let mut data = bytes(1, LEN);
    keep(dir.path(), &data, 100);
    let blob = blob(&data);
    *data.last_mut().unwrap() ^= 1;
    fs::write(dir.path().join(blob.digest.to_string()), &data).unwrap();
    let (server, _) = server(&cache(dir.path(), None), Clients::All);
    run(async {
        let mut client = with_ones(&server).await;
        assert_eq!(client.place(&[(blob, 100)]).await, Ok(vec![0]));
        only_its_place_is_zero(&mut client).await;
    });
}

#[test]
fn bytes_of_a_model_file_that_has_become_another_are_cleared() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    let values = |first: f32| (0..LEN / 4).map(|i| first + i as f32).collect::<Vec<_>>();
    let write = |first: f32| {
        let mut writer = outboard_gguf::GgufWriter::new();
        writer.tensor("a", DType::F32, &[LEN / 4], &f32s(&values(first))).unwrap();
        fs::write(&path, writer.finish().unwrap()).unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
    };
    write(1.0);
    let options = BlobOptions { models: Some(dir.path().into()), ..BlobOptions::default() };
    let (server, _) = server(&options, Clients::All);
    run(async {
        let client = with_ones(&server).await;
        let old = blob(&f32s(&values(1.0)));
        // Answered when the file has been looked at: one bit, and it is set.
        let have = client.asking(&[old]).await.next().await.unwrap().unwrap();
        assert_eq!(v1::HaveBlobsResponse::decode(have).unwrap().have[..], [1]);
        assert_eq!(client.place(&[(old, 100)]).await, Ok(vec![1]));
        // The same length, time of change and inode, and other bytes.
        write(2.0);
        let mut client = with_ones(&server).await;
        assert_eq!(client.place(&[(old, 100)]).await, Ok(vec![0]));
        let after = client.read(100, old.len).await;
        assert!(after.iter().all(|&b| b == 0), "bytes of a file of the server that the client has not named");
    });
}

#[test]
fn a_call_that_is_reset_leaves_no_part_of_a_damaged_file() {
    const LARGE: usize = 256 << 20;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join(wrong(LARGE).digest.to_string());
    fs::write(&file, vec![5; LARGE]).unwrap();
    let (server, _) = server(&cache(dir.path(), None), Clients::All);
    run(async {
        let mut client = Sender::new(server.local_addr(), None, LARGE as u64).await;
        let call = client.placing(&[(wrong(LARGE), 0)]).await;
        let mut wait = WAIT.as_millis();
        while client.read(0, 1).await == [0] && wait > 0 {
            wait -= 1;
        }
        drop(call);
        for _ in 0..500 {
            if client.read(0, 1).await == [0] {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("a part is left");
    });
}

#[cfg(unix)]
#[test]
fn only_its_owner_can_look_into_a_cache() {
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let dir = tempfile::tempdir().unwrap();
    let (made, models, side) = (dir.path().join("a/cache"), dir.path().join("models"), dir.path().join("b/side"));
    fs::create_dir(&models).unwrap();
    let mut writer = outboard_gguf::GgufWriter::new();
    writer.tensor("a", DType::F32, &[2000], &f32s(&[3.0; 2000])).unwrap();
    fs::write(models.join("a.gguf"), writer.finish().unwrap()).unwrap();
    set_age(&models.join("a.gguf"), 100);
    let options = BlobOptions { models: Some(models), digests: Some(side.clone()), ..cache(&made, None) };
    let (server, _) = server(&options, Clients::All);
    run(async {
        let mut client = Sender::new(server.local_addr(), None, 1 << 20).await;
        let data = bytes(1, 5000);
        // While it is written, too.
        let mut line = client.queue().await;
        line.announce(1, blob(&data), 0);
        line.data(1, &data[..1]);
        soon(|| !names(&made).is_empty()).await;
        assert_eq!(mode(&made.join(&names(&made)[0])), 0o600);
        line.data(1, &data[1..]);
        assert_eq!(line.finish().await, None);
        soon(|| kept(&made, &data).exists()).await;
        assert_eq!((mode(&made), mode(&kept(&made, &data))), (0o700, 0o600));
        soon(|| side.exists() && names(&side).len() == 1 && names(&side)[0].ends_with(".digests")).await;
        assert_eq!((mode(&side), mode(&side.join(&names(&side)[0]))), (0o700, 0o600));
    });
}
