//! A real model on the Vulkan device of rpc-servers; where there is no card, on a software driver, which takes a second for a token.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use outboard_integration::{
    Client, Comparison, RunReport, Server, cases, model, program, skip, small_model, texts_on, texts_together,
};
use std::process::Command;
use std::time::Duration;

const TOKENS: usize = 6;
/// A run takes some tens of seconds; on a busy machine it may take long.
const LIMIT: Duration = Duration::from_secs(240);

/// Whether there is a device; without one, a line.
fn has_vulkan() -> bool {
    let out = Command::new(program("rpc-server")).args(["--list-devices", "-d", "vulkan0"]).output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    if !said.contains("Vulkan0:") {
        skip("there is no Vulkan device: mesa-vulkan-drivers has a software driver");
        return false;
    }
    true
}

#[test]
fn smollm2() {
    if has_vulkan() {
        texts_on("smollm2", "vulkan0", 1, TOKENS);
    }
}

/// Names the models that [`others`] are: a software driver takes minutes for each.
const MODELS: &str = "OUTBOARD_VULKAN_MODELS";

#[test]
fn others() {
    let Ok(models) = std::env::var(MODELS) else {
        return println!("skipped: {MODELS} names no models, such as qwen2.5-coder,gemma3");
    };
    if has_vulkan() {
        models.split(',').for_each(|model| texts_on(model, "vulkan0", 1, TOKENS));
    }
}

#[test]
fn eight_sequences_at_once() {
    if has_vulkan() {
        let server = Server::start(&["-d", "vulkan0,cpu:1", "-t", "1"]);
        texts_together(&server.addr, &[1.0, 0.0], TOKENS, || {});
    }
}

/// From a Vulkan device of one server to the CPU of another.
#[test]
fn texts_go_on_where_the_kernels_are_others() {
    if has_vulkan() {
        let mut first = Server::start(&["-d", "vulkan0", "-t", "1"]);
        let second = Server::start(&["-d", "cpu:1", "-t", "1"]);
        texts_together(&format!("{},{}", first.addr, second.addr), &[1.0, 1.0], TOKENS, || first.kill());
    }
}

/// A client that is killed in the middle of a run leaves nothing on the device, and the next one finds it at work.
#[test]
fn a_client_that_is_killed_leaves_nothing() {
    let Some(path) = model("smollm2").filter(|_| has_vulkan()) else { return };
    let server = Server::start(&["-d", "vulkan0,cpu:1", "-t", "1", "--memory-limit", "2G"]);
    let free = server.memory_free();
    let path = path.to_str().unwrap();
    let args = |n| ["run", "-m", path, "-p", "Once", "-n", n, "-c", "512", "--rpc", &server.addr, "-ts", "1,0"];
    let mut client = Client::start(&args("200"));
    client.wait_for_text(Duration::from_secs(120));
    assert!(server.memory_free() < free);
    client.kill();
    let end = std::time::Instant::now() + Duration::from_secs(40);
    while server.memory_free() + (1 << 20) < free {
        assert!(std::time::Instant::now() < end, "{} bytes free of {free}", server.memory_free());
        std::thread::sleep(Duration::from_millis(100));
    }
    let done = Client::run(&args("2"), Duration::from_secs(120));
    assert_eq!(done.code, Some(0), "{}", done.stderr);
}

/// The variables that name drivers to the loader.
const DRIVERS: [&str; 2] = ["VK_ICD_FILENAMES", "VK_DRIVER_FILES"];

/// `rpc-server --list-devices -d DEVICES` where these are all drivers: what it says on stdout, and on stderr with what is for debugging.
fn listed(devices: &str, drivers: &str) -> (Option<i32>, String, String) {
    let mut server = Command::new(program("rpc-server"));
    server.args(["--list-devices", "-d", devices]).env("RUST_LOG", "outboard_vulkan=debug");
    for variable in DRIVERS {
        server.env(variable, drivers);
    }
    let out = server.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (out.status.code(), text(out.stdout), text(out.stderr))
}

/// No driver, or what is none: no device, one line for debugging, and an error that says what is needed to who has named it.
#[test]
fn without_a_driver() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let manifest = |library: &str| {
        format!(r#"{{"file_format_version": "1.0.0", "ICD": {{"library_path": "{library}", "api_version": "1.3.0"}}}}"#)
    };
    let no_library = file("text.so", "this is no library");
    for (drivers, what) in [
        (folder.path().join("none.json").to_str().unwrap().to_owned(), "a file that is not there"),
        (file("empty.json", ""), "an empty file"),
        (file("damaged.json", "{\"file_format_version\": \"1.0.0\", \"ICD\": {"), "a damaged file"),
        (file("missing.json", &manifest("/nowhere/libdriver.so")), "a library that is not there"),
        (file("wrong.json", &manifest(&no_library)), "a library that is none"),
    ] {
        for name in ["vulkan0", "vulkan"] {
            let (code, out, err) = listed(name, &drivers);
            assert_eq!((code, out.as_str()), (Some(2), ""), "{what}: {err}");
            let line = err.lines().find(|line| line.starts_with("error: ")).unwrap_or_else(|| panic!("{what}: {err}"));
            assert!(line.contains(&format!("there is no device \"{name}\"")), "{what}: {line}");
            assert!(line.contains("a card needs its driver for Vulkan 1.2"), "{what}: {line}");
            let why: Vec<_> = err.lines().filter(|line| line.contains("no Vulkan devices: ")).collect();
            assert_eq!(why.len(), 1, "{what}: {err}");
        }
        // Who has not named it gets what there is.
        let (code, out, err) = listed("cpu:1", &drivers);
        assert!(code == Some(0) && out.contains("CPU0") && !err.contains("Vulkan"), "{what}: {out}{err}");
    }
}

/// A driver of this host's that runs on processors: not what "vulkan" means.
#[test]
fn software_is_named_by_number() {
    let Some(lavapipe) = lavapipe() else { return };
    let (code, out, err) = listed("vulkan", &lavapipe);
    assert_eq!((code, out.as_str()), (Some(2), ""), "{err}");
    assert!(err.contains("\"vulkan\" means hardware, of which there is none"), "{err}");
    assert!(err.contains("name a software device to use it: vulkan0"), "{err}");
    let (code, out, err) = listed("vulkan0", &lavapipe);
    assert!(code == Some(0) && out.contains("Vulkan0: llvmpipe"), "{out}{err}");
    let done = Client::start_with(&["devices", "-dev", "vulkan"], &[("VK_ICD_FILENAMES", &lavapipe)]).wait(LIMIT);
    assert!(done.error().contains("name a software device to use it: vulkan0"), "{}", done.stderr);
}

fn lavapipe() -> Option<String> {
    let files = std::fs::read_dir("/usr/share/vulkan/icd.d").into_iter().flatten().flatten();
    let mut names = files.map(|file| file.path().to_str().unwrap_or_default().to_owned());
    let found = names.find(|name| name.contains("/lvp_icd."));
    if found.is_none() {
        skip("lavapipe is not here (mesa-vulkan-drivers)");
    }
    found
}

/// Ids of devices that `outboard devices` shows.
fn devices(args: &[&str]) -> Vec<String> {
    #[derive(serde::Deserialize)]
    struct Row {
        id: String,
    }
    let rows: Vec<Row> = Client::run(&[&["devices", "--json"], args].concat(), LIMIT).json();
    rows.into_iter().map(|row| row.id).collect()
}

/// Without a server: a device is opened when it is named, and only then.
#[test]
fn a_local_device_is_opened_when_it_is_named() {
    if !has_vulkan() {
        return;
    }
    assert!(!devices(&[]).contains(&"Vulkan0".to_owned()));
    assert_eq!(devices(&["-dev", "vulkan0"]), [devices(&[]), vec!["Vulkan0".to_owned()]].concat());
    assert_eq!(devices(&["-dev", "cpu:1,reference"]), [devices(&[]), vec!["REF0".to_owned()]].concat());
    let Some(path) = model("smollm2") else { return };
    let mut case = cases("smollm2").remove(0);
    case.steps.truncate(TOKENS);
    let n = TOKENS.to_string();
    let mut args = vec!["run", "-m", path.to_str().unwrap(), "-p", &case.prompt, "--temp", "0", "-n", &n, "-c", "512"];
    args.extend(["--ignore-eos", "--json"]);
    let mut comparison = Comparison::of("smollm2");
    // Mapped, both use the weights where they are in the file.
    for (devices, parts, mmap, used) in
        [("vulkan0", "1", "--no-mmap", &["Vulkan0"][..]), ("Vulkan0,cpu:1", "1,1", "--mmap", &["Vulkan0", "CPU0"])]
    {
        let report: RunReport =
            Client::run(&[&args[..], &["-dev", devices, "-ts", parts, mmap]].concat(), LIMIT).json();
        comparison.add(&case, &report.tokens, &report.log_probs).unwrap_or_else(|e| panic!("{devices}: {e}"));
        let with_layers: Vec<_> = report.devices.iter().filter(|d| d.layers.is_some()).map(|d| &d.id).collect();
        assert_eq!(with_layers, used, "{:?}", report.devices);
    }
    comparison.finish().unwrap();
}

#[test]
fn plan_bench_and_smoke_of_a_local_device() {
    if !has_vulkan() {
        return;
    }
    let smoke = Client::run(&["smoke", "-dev", "vulkan0", "--json"], LIMIT);
    assert!(smoke.code == Some(0) && smoke.stdout.contains("\"Vulkan0\""), "{}{}", smoke.stdout, smoke.stderr);
    let cpu = Client::run(&["smoke", "-dev", "cpu"], LIMIT);
    assert!(cpu.code == Some(0) && cpu.stdout.contains("CPU0"), "{}{}", cpu.stdout, cpu.stderr);
    let wrong = Client::run(&["smoke", "-dev", "vulkan77"], LIMIT);
    assert!(wrong.error().contains("there is no device \"vulkan77\"; this host has: "), "{}", wrong.stderr);
    // A small model: a plan measures long prompts.
    let folder = tempfile::tempdir().unwrap();
    let path = small_model(folder.path());
    let path = path.to_str().unwrap();
    let plan = Client::run(&["plan", "-m", path, "-dev", "vulkan0", "-c", "256", "--json"], LIMIT);
    assert!(plan.code == Some(0) && plan.stdout.contains("\"Vulkan0\""), "{}{}", plan.stdout, plan.stderr);
    let args =
        ["bench", "-m", path, "-dev", "cpu:1", "--beside", "vulkan0", "-p", "0", "-n", "2", "-r", "1", "-o", "json"];
    let bench = Client::run(&args, LIMIT);
    assert!(bench.code == Some(0) && bench.stdout.contains("Vulkan0"), "{}{}", bench.stdout, bench.stderr);
}
