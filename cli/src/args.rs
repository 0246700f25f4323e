//! Arguments that several commands share.

use crate::trust::TrustArgs;
use clap::Args;
use clap::error::ErrorKind;
use outboard::{ConnectOptions, Endpoint, Prefixes};
use outboard_core::DType;
use outboard_core::op::{Penalties, Sampler};
use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// What `--rpc` is, for commands that take it.
pub(crate) const RPC_HELP: &str = "Servers: host:port,host:port (default port 50052, IPv6 in brackets); grpcs://host:port with TLS, \
    quic://host:port over QUIC, auto://host:port with what suits the network";

/// A list of endpoints.
#[derive(Clone, Debug, Default)]
pub(crate) struct RpcList(pub(crate) Vec<Endpoint>);

impl FromStr for RpcList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Ok(RpcList::default());
        }
        Endpoint::parse_list(text).map(RpcList).map_err(|e| e.to_string())
    }
}

/// Arguments that are wrong together, or for what is there: the program ends as for any other wrong usage.
pub(crate) fn usage(wrong: impl Display) -> anyhow::Error {
    clap::Error::raw(ErrorKind::ArgumentConflict, format!("{wrong}\n")).into()
}

/// Parts of a split.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parts(pub(crate) Vec<f64>);

impl FromStr for Parts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let part = |p: &str| match p.trim().parse::<f64>() {
            Ok(v) if v.is_finite() && v >= 0.0 => Ok(v),
            _ => Err(format!("\"{p}\" is not a part of a split (numbers such as 3,1)")),
        };
        text.split([',', '/']).map(part).collect::<Result<_, _>>().map(Parts)
    }
}

/// Where to run.
#[derive(Args, Clone, Debug)]
pub(crate) struct DeviceArgs {
    #[arg(long, help = RPC_HELP, env = "OUTBOARD_RPC", value_name = "LIST", default_value = "", hide_default_value = true)]
    pub(crate) rpc: RpcList,
    /// Devices to use, in this order: CPU0, cpu:THREADS, cuda0, cuda for all cards, vulkan0 or ggml:CUDA0 for a local one, host:port/CPU0 for a remote one, host:port for all of a server. A
    /// name that only one server's device has, other than CPU0, means that one;
    /// by default all of the servers', or the local ones if there are no servers
    #[arg(long = "dev", alias = "device", value_name = "D,D,..", value_delimiter = ',')]
    pub(crate) dev: Vec<String>,
    /// Threads of the local CPU device [default: all processors; several devices on them divide them]
    #[arg(short = 't', long, value_name = "THREADS", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Folder of ggml's libraries, which llama.cpp installs, for local GPUs; by default the usual places are looked at
    #[arg(long, env = "OUTBOARD_GGML", value_name = "DIR", value_parser = outboard_rpc_server::folder_or_nothing())]
    pub(crate) ggml: Option<PathBuf>,
    /// Give a server up that is connected and gets no further for so long; one that computes gets further [default: 60]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=MAX_STALL))]
    pub(crate) stall_timeout: Option<u64>,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
}

/// The longest `--stall-timeout`, in seconds: a day.
const MAX_STALL: u64 = 24 * 3600;

impl DeviceArgs {
    /// How to connect to the servers. Reads the files of the trust arguments; errors name them.
    pub(crate) fn options(&self) -> anyhow::Result<ConnectOptions> {
        let options = self.trust.options()?;
        let stall_after = self.stall_timeout.map_or(options.stall_after, Duration::from_secs);
        Ok(ConnectOptions { stall_after, ..options })
    }
}

/// How a model is divided.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SplitMode {
    /// Everything on the first device
    None,
    /// Layers, or halves of them, on each device
    Layer,
}

/// Types that a KV cache may have.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CacheType {
    F32,
    F16,
    Bf16,
    #[value(name = "q8_0")]
    Q8_0,
}

impl CacheType {
    pub(crate) fn dtype(self) -> DType {
        match self {
            CacheType::F32 => DType::F32,
            CacheType::F16 => DType::F16,
            CacheType::Bf16 => DType::BF16,
            CacheType::Q8_0 => DType::Q8_0,
        }
    }
}

/// How a model is placed.
#[derive(Args, Clone, Debug)]
pub(crate) struct ModelArgs {
    /// A GGUF file, or a name of the catalogue (see `outboard fetch`); `outboard serve` takes several, NAME=MODEL sets the name that requests give
    #[arg(short, long = "model", value_name = "MODEL", required = true)]
    pub(crate) models: Vec<String>,
    /// Tokens of context of each sequence; 0 for what the model was trained with [default: 4096, or that if it is less]
    #[arg(short = 'c', long = "ctx-size", value_name = "CTX")]
    pub(crate) ctx: Option<u32>,
    /// Most tokens of a prompt that are worked on together
    #[arg(short = 'b', long, value_name = "N", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) batch_size: u32,
    /// Most tokens in one run of the graph; several devices work on the parts of a prompt side by side [default: what the devices ask for, 128 on CPUs]
    #[arg(long = "ub", alias = "ubatch-size", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) ubatch_size: Option<u32>,
    /// How the model is divided over devices
    #[arg(long = "sm", alias = "split-mode", value_name = "MODE", default_value = "layer")]
    pub(crate) split_mode: SplitMode,
    /// Parts of the model for each device, such as 3,1; the last device has the model's last layers and the embedding [default: by measured speed and free memory]
    #[arg(long = "ts", alias = "tensor-split", value_name = "A,B,..")]
    pub(crate) tensor_split: Option<Parts>,
    /// Puts weights whose names match a pattern on a device; may be given several times
    #[arg(long = "ot", alias = "override-tensor", value_name = "REGEX=DEV")]
    pub(crate) override_tensor: Vec<String>,
    /// Element type of the keys in the KV cache
    #[arg(long = "ctk", alias = "cache-type-k", value_name = "T", default_value = "f16")]
    pub(crate) cache_type_k: CacheType,
    /// Element type of the values in the KV cache
    #[arg(long = "ctv", alias = "cache-type-v", value_name = "T", default_value = "f16")]
    pub(crate) cache_type_v: CacheType,
    /// Sequences at a time, as the command needs them
    #[arg(skip)]
    pub(crate) sequences: Sequences,
    /// Use the weights of this host's devices where the file is mapped, even if there is memory for a copy, which has larger pages and decodes faster; a file that is cut meanwhile ends the program
    #[arg(long)]
    pub(crate) mmap: bool,
    /// Copy the weights of this host's devices into memory, even if there is little of it
    #[arg(long, conflicts_with = "mmap")]
    pub(crate) no_mmap: bool,
}

/// Most tokens of a run of which probabilities may be asked for, and most bytes of their logits, which have to fit beside the model: with fewer tokens a text is
/// read more slowly.
const SCORED_AT_ONCE: usize = 128;
const SCORED_BYTES: usize = 64 << 20;

/// How many sequences a command has at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sequences {
    #[default]
    One,
    /// Each reads all of its prompt.
    Apart(usize),
    /// A beginning that several have is read once, and stays for those that come later.
    Sharing(usize),
    /// The same, and programs ask how probable given tokens are.
    Served(usize),
}

impl Sequences {
    pub(crate) fn count(self) -> usize {
        match self {
            Sequences::One => 1,
            Sequences::Apart(n) | Sequences::Sharing(n) | Sequences::Served(n) => n,
        }
    }

    /// Tokens of a run of which probabilities may be asked for, of a vocabulary of so many.
    pub(crate) fn scores(self, n_vocab: usize) -> usize {
        match self {
            Sequences::Served(_) => (SCORED_BYTES / size_of::<f32>() / n_vocab.max(1)).clamp(1, SCORED_AT_ONCE),
            _ => 0,
        }
    }

    pub(crate) fn prefixes(self) -> Prefixes {
        match self {
            Sequences::One | Sequences::Apart(_) => Prefixes::Apart,
            Sequences::Sharing(_) | Sequences::Served(_) => Prefixes::Shared,
        }
    }
}

impl ModelArgs {
    /// The model, for commands that take one.
    pub(crate) fn only(&self) -> anyhow::Result<&str> {
        match self.models.as_slice() {
            [model] => Ok(model),
            _ => Err(usage("-m is given once here: only `outboard serve` takes several models")),
        }
    }
}

/// How tokens are chosen.
#[derive(Args, Clone, Debug)]
pub(crate) struct SampleArgs {
    /// Temperature; 0 takes the most probable token
    #[arg(long, value_name = "T", default_value_t = 0.8)]
    pub(crate) temp: f32,
    /// Keep the K most probable tokens; 0 for all
    #[arg(long, value_name = "K", default_value_t = 40)]
    pub(crate) top_k: u32,
    /// Keep the most probable tokens whose probabilities add up to P
    #[arg(long, value_name = "P", default_value_t = 0.95)]
    pub(crate) top_p: f32,
    /// Drop tokens less probable than P times the most probable one
    #[arg(long, value_name = "P", default_value_t = 0.05)]
    pub(crate) min_p: f32,
    /// Make tokens less probable that were used before: logits are divided by P; 1 for none
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    pub(crate) repeat_penalty: f32,
    /// Take P from a token's logit for each time it was used
    #[arg(long, value_name = "P", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) frequency_penalty: f32,
    /// Take P from the logit of each token that was used
    #[arg(long, value_name = "P", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) presence_penalty: f32,
    /// Tokens that count as used before: the last N
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub(crate) repeat_last_n: u32,
    /// Seed; the same seed gives the same text [default: from the clock]
    #[arg(short, long, value_name = "SEED")]
    pub(crate) seed: Option<u64>,
}

impl SampleArgs {
    /// The penalties, if there are any, or what is wrong with the numbers.
    pub(crate) fn penalties(&self) -> Result<Option<Penalties>, String> {
        let check = |ok: bool, what: &str| if ok { Ok(()) } else { Err(what.to_owned()) };
        check(self.repeat_penalty > 0.0 && self.repeat_penalty.is_finite(), "--repeat-penalty must be above 0")?;
        let finite = self.frequency_penalty.is_finite() && self.presence_penalty.is_finite();
        check(finite, "--frequency-penalty and --presence-penalty must be numbers")?;
        let penalties = Penalties {
            last_n: self.repeat_last_n as usize,
            repeat: self.repeat_penalty,
            frequency: self.frequency_penalty,
            presence: self.presence_penalty,
        };
        let changes = penalties.repeat != 1.0 || penalties.frequency != 0.0 || penalties.presence != 0.0;
        Ok((changes && penalties.last_n > 0).then_some(penalties))
    }

    /// The sampler, or what is wrong with the numbers.
    pub(crate) fn sampler(&self) -> Result<Sampler, String> {
        let check = |ok: bool, what: &str| if ok { Ok(()) } else { Err(what.to_owned()) };
        check(self.temp >= 0.0 && self.temp.is_finite(), "--temp must be 0 or more")?;
        check((0.0..=1.0).contains(&self.top_p), "--top-p must be from 0 to 1")?;
        check((0.0..=1.0).contains(&self.min_p), "--min-p must be from 0 to 1")?;
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let clock = now.map_or(0, |d| d.as_nanos() as u64 & 0xffff_ffff);
        Ok(Sampler {
            temperature: self.temp,
            top_k: self.top_k as usize,
            top_p: self.top_p,
            min_p: self.min_p,
            seed: self.seed.unwrap_or(clock),
        })
    }
}

const PLACED: &str =
    "layers are placed on devices by -ts, -ot and -dev; without them, by measured speed and free memory";
const EXPERTS: &str = "weights are placed by name: -ot 'ffn_.*_exps=CPU0'";
const FETCHED: &str = "models are files (-m PATH), or small ones by name (`outboard fetch`)";

/// Flags of llama.cpp that do not exist here, and what there is.
const ABSENT: &[(&str, &str)] = &[
    ("-ngl", PLACED),
    ("--n-gpu-layers", PLACED),
    ("--gpu-layers", PLACED),
    ("--cpu-moe", EXPERTS),
    ("--n-cpu-moe", EXPERTS),
    ("-hf", FETCHED),
    ("-hfr", FETCHED),
    ("--hf-repo", FETCHED),
    ("-cb", "texts are always put together with those that are under way: leave it out"),
    ("--cont-batching", "texts are always put together with those that are under way: leave it out"),
    ("--flash-attn", "attention is always computed in one pass: leave it out"),
    ("--jinja", "chat templates are always rendered: leave it out"),
    ("--chat-template", "the template is the model's (tokenizer.chat_template)"),
    ("--chat-template-file", "the template is the model's (tokenizer.chat_template)"),
    ("--reasoning-budget", "whether a model reasons, each request says (chat_template_kwargs, reasoning_effort)"),
    ("--embedding", "/v1/embeddings is always there: leave it out"),
    ("--embeddings", "/v1/embeddings is always there: leave it out"),
    ("--api-key", "keys are in a file, where other users of this host do not see them: --api-key-file"),
    ("--no-webui", "the page is left out by --no-page"),
    ("-tb", "-t is for prompts as well"),
    ("--threads-batch", "-t is for prompts as well"),
    ("--ssl-cert-file", "the certificate of the service is that of --tls-cert"),
    ("--ssl-key-file", "the key of the service's certificate is that of --tls-key"),
    ("--metrics", "/metrics is always there: leave it out"),
    ("--slots", "/slots is always there: leave it out"),
    ("--pooling", "each request for embeddings says it (pooling), or the model does"),
    ("--reasoning-format", "reasoning is always given apart from the text"),
    ("--served-model-name", "a model is called what --alias says"),
    ("--max-model-len", "the context of each text is -c"),
    (
        "--gpu-memory-utilization",
        "the cache is as large as -np texts of -c tokens; a server's memory is bounded by its --memory-limit",
    ),
    ("--tensor-parallel-size", PLACED),
    ("--log-disable", "requests are in the log only with -v: leave it out"),
    ("--timeout", "a client that takes nothing for a minute is let go"),
    ("--lora", "adapters are not supported: merge them into the model"),
    ("--mmproj", "models with images are not supported: their text models are"),
    ("--mlock", "weights on this host's devices are copied into memory by --no-mmap"),
    ("-mg", "devices are chosen by -dev, and layers are placed by -ts"),
    ("-fa", "attention is always computed in one pass: leave it out"),
    ("-cnv", "run is a conversation with --chat, or without a prompt"),
    ("-md", "no draft model is used"),
];

/// What to say of the first flag that does not exist here.
pub(crate) fn absent(args: impl Iterator<Item = std::ffi::OsString>) -> Option<String> {
    let mut flags = args.take_while(|arg| arg != "--").peekable();
    // The server has flags of its own.
    if flags.peek().is_some_and(|command| command == "rpc-server") {
        return None;
    }
    let said = |arg: std::ffi::OsString| {
        let text = arg.to_string_lossy();
        let (name, instead) = ABSENT.iter().find(|(name, _)| text.split('=').next() == Some(*name))?;
        Some(format!("{name} does not exist here: {instead}"))
    };
    flags.find_map(said)
}

/// llama.cpp's names that are behind one dash and have more than one letter.
const BEHIND_ONE_DASH: [&str; 9] = ["-np", "-ub", "-sm", "-ts", "-ot", "-dev", "-ctk", "-ctv", "-jf"];

/// What help says of them.
pub(crate) fn names_behind_one_dash() -> String {
    format!("llama.cpp's names behind one dash are read as well: {}.", BEHIND_ONE_DASH.join(", "))
}

/// Rewrites llama.cpp's habit of long names behind one dash (`-sm`, `-ts`, `-ub`) to what clap reads.
pub(crate) fn with_double_dashes(args: impl Iterator<Item = std::ffi::OsString>) -> Vec<std::ffi::OsString> {
    let mut literal = false;
    args.map(|arg| {
        literal |= arg == "--";
        let text = arg.to_string_lossy();
        let name = text.split('=').next().unwrap_or_default();
        if !literal && BEHIND_ONE_DASH.contains(&name) { format!("-{text}").into() } else { arg }
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_dash_is_enough() {
        let args = ["run", "-ts", "1,2", "-sm=none", "-t", "3", "--", "-ot"].map(std::ffi::OsString::from);
        let out = with_double_dashes(args.into_iter());
        assert_eq!(out, ["run", "--ts", "1,2", "--sm=none", "-t", "3", "--", "-ot"]);
    }

    #[test]
    fn flags_that_do_not_exist_say_what_there_is() {
        let said = |args: &[&str]| absent(args.iter().map(std::ffi::OsString::from));
        assert!(said(&["run", "-ngl", "99"]).unwrap().contains("-ngl does not exist here: layers are placed"));
        assert!(said(&["run", "-fa=on"]).is_some() && said(&["serve", "-hf", "org/repo"]).is_some());
        assert_eq!([said(&["run", "-n", "9"]), said(&["run", "--", "-ngl"])], [None, None]);
        assert!(
            said(&["serve", "--metrics"]).is_some() && said(&["rpc-server", "--metrics", "127.0.0.1:9090"]).is_none()
        );
    }

    #[test]
    fn parts() {
        assert_eq!("3,1/0.5".parse::<Parts>().unwrap().0, [3.0, 1.0, 0.5]);
        assert!("3,x".parse::<Parts>().is_err() && "-1".parse::<Parts>().is_err() && "nan".parse::<Parts>().is_err());
    }
}
