//! `outboard cert`: a CA of one's own, and certificates for a server and a client.

use crate::args::usage;
use anyhow::{Context, Result, bail};
use outboard_output as output;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use time::{Duration, OffsetDateTime};

/// Days that a CA is good for: long enough that its hosts are replaced sooner.
const CA_DAYS: i64 = 3650;
/// Days before now that a certificate is good for already: clocks of hosts without NTP differ.
const EARLIER: Duration = Duration::days(1);
/// Longest name in a certificate: what DNS allows.
const MAX_NAME: usize = 253;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder for the files; made if there is none
    dir: PathBuf,
    /// Name or address by which clients reach the server, besides this host's name, localhost and the loopback addresses (with
    /// --signed-by: in place of this host's name); may be given several times
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    name: Vec<Name>,
    /// Name of the client in the server's log [default: this user's]
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    client: Option<Name>,
    /// Days that the server's and the client's certificate are good for
    #[arg(long, value_name = "N", default_value_t = 365, value_parser = clap::value_parser!(u16).range(1..=3650))]
    days: u16,
    /// Sign with the CA in this folder, which `outboard cert` has made, in place of a new one
    #[arg(long, value_name = "DIR")]
    signed_by: Option<PathBuf>,
    /// Replace files that are there
    #[arg(long)]
    force: bool,
}

/// What a certificate can be for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Name {
    Dns(String),
    Ip(IpAddr),
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Name::Dns(name) => f.write_str(name),
            Name::Ip(ip) => write!(f, "{ip}"),
        }
    }
}

fn parse_name(text: &str) -> Result<Name, String> {
    if let Ok(ip) = text.trim_matches(['[', ']']).parse() {
        return Ok(Name::Ip(ip));
    }
    let label = |l: &str| {
        let inner = l.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
        inner && !l.is_empty() && l.len() <= 63 && !l.starts_with('-') && !l.ends_with('-')
    };
    let rest = text.strip_prefix("*.").unwrap_or(text);
    if text.len() <= MAX_NAME && rest.split('.').all(label) {
        Ok(Name::Dns(text.to_ascii_lowercase()))
    } else {
        Err("it is neither an IP address nor a host name; write one without scheme and port".into())
    }
}

/// A file to be written.
struct Output {
    path: PathBuf,
    text: String,
    secret: bool,
}

/// A CA, new or read.
struct Ca {
    issuer: Issuer<'static, KeyPair>,
    cert: String,
    /// The key, and until when it is good, if the CA is new.
    new: Option<(String, OffsetDateTime)>,
}

pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    let now = OffsetDateTime::now_utc();
    let until = now + Duration::days(args.days.into());
    let host = gethostname::gethostname().to_string_lossy().to_ascii_lowercase();
    let ca = match &args.signed_by {
        Some(dir) => read_ca(dir)?,
        None => new_ca(&host, now)?,
    };
    // A further server of a CA is another host, which must not be able to pass for this one.
    let elsewhere = args.signed_by.is_some() && !args.name.is_empty();
    let names = server_names(if elsewhere { "" } else { &host }, &args.name);
    // A server is a client of the servers that it sends tensors to.
    let both = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let server = leaf(
        &ca,
        &format!("rpc-server on {}", args.name.first().map_or(host, Name::to_string)),
        &names,
        &both,
        now,
        until,
    )?;
    let client_name = args.client.clone().unwrap_or_else(user);
    let client_names = [client_name.clone()];
    let client =
        leaf(&ca, &client_name.to_string(), &client_names, &[ExtendedKeyUsagePurpose::ClientAuth], now, until)?;
    let file = |name: &str, text: String| Output { path: args.dir.join(name), text, secret: name.ends_with("key.pem") };
    let mut files = vec![file("ca.pem", ca.cert.clone())];
    if let Some((key, _)) = &ca.new {
        files.push(file("ca-key.pem", key.clone()));
    }
    files.extend([file("server.pem", server.0), file("server-key.pem", server.1)]);
    files.extend([file("client.pem", client.0), file("client-key.pem", client.1)]);
    write_all(&args.dir, &files, args)?;
    let list: Vec<String> = names.iter().map(Name::to_string).collect();
    output::out(report(args, &ca, &list.join(", "), &client_name.to_string(), until))?;
    Ok(ExitCode::SUCCESS)
}

fn params(common_name: &str, from: OffsetDateTime, until: OffsetDateTime) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.not_before = from - EARLIER;
    params.not_after = until;
    params.use_authority_key_identifier_extension = true;
    params
}

fn new_ca(host: &str, now: OffsetDateTime) -> Result<Ca> {
    let key = KeyPair::generate().context("no key for the CA")?;
    let until = now + Duration::days(CA_DAYS);
    // The key's first bytes: two CAs of one host must not have the same name, or clients try the wrong one's key.
    let mark: String = key.public_key_raw().iter().skip(1).take(4).map(|b| format!("{b:02x}")).collect();
    let mut params = params(&format!("Outboard CA of {host}, {mark}"), now, until);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let cert = params.self_signed(&key).context("the CA cannot sign")?.pem();
    let new = Some((key.serialize_pem(), until));
    Ok(Ca { issuer: Issuer::new(params, key), cert, new })
}

fn read_ca(dir: &Path) -> Result<Ca> {
    let read = |name: &str| {
        let path = dir.join(name);
        fs::read_to_string(&path).with_context(|| format!("--signed-by: {}", path.display()))
    };
    let (cert, key) = (read("ca.pem")?, read("ca-key.pem")?);
    let key = KeyPair::from_pem(&key)
        .with_context(|| format!("--signed-by: {} is not a private key", dir.join("ca-key.pem").display()))?;
    let issuer = Issuer::from_ca_cert_pem(&cert, key)
        .with_context(|| format!("--signed-by: {} is not a CA's certificate", dir.join("ca.pem").display()))?;
    Ok(Ca { issuer, cert, new: None })
}

/// A certificate and its key.
fn leaf(
    ca: &Ca,
    common_name: &str,
    names: &[Name],
    purposes: &[ExtendedKeyUsagePurpose],
    from: OffsetDateTime,
    until: OffsetDateTime,
) -> Result<(String, String)> {
    let mut params = params(common_name, from, until);
    for name in names {
        params.subject_alt_names.push(match name {
            Name::Dns(name) => SanType::DnsName(name.as_str().try_into()?),
            Name::Ip(ip) => SanType::IpAddress(*ip),
        });
    }
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = purposes.to_vec();
    let key = KeyPair::generate().context("no key")?;
    let cert = params.signed_by(&key, &ca.issuer).context("the CA cannot sign")?;
    Ok((cert.pem(), key.serialize_pem()))
}

/// This host's name, in short, too, then those that always lead to it, then what the user adds.
fn server_names(host: &str, more: &[Name]) -> Vec<Name> {
    let mut names: Vec<Name> = parse_name(host).into_iter().collect();
    names.extend(
        host.split_once('.').and_then(|(short, _)| parse_name(short).ok()).filter(|n| matches!(n, Name::Dns(_))),
    );
    names.push(Name::Dns("localhost".into()));
    names.push(Name::Ip(Ipv4Addr::LOCALHOST.into()));
    names.push(Name::Ip(Ipv6Addr::LOCALHOST.into()));
    let mut all: Vec<Name> = Vec::new();
    for name in names.iter().chain(more) {
        if !all.contains(name) {
            all.push(name.clone());
        }
    }
    all
}

fn user() -> Name {
    let var = |name: &str| std::env::var(name).ok().and_then(|user| parse_name(&user).ok());
    var("USER").or_else(|| var("USERNAME")).unwrap_or(Name::Dns("client".into()))
}

/// Writes all files, or none if one is there already and may not be replaced.
fn write_all(dir: &Path, files: &[Output], args: &Args) -> Result<()> {
    if !args.force
        && let Some(there) = files.iter().find(|f| f.path.symlink_metadata().is_ok())
    {
        bail!(
            "{} is there already; --force replaces it (a new CA makes all certificates of the old one useless), or choose another folder; \
             certificates of a CA that is there: outboard cert NEW-FOLDER --signed-by {}",
            there.path.display(),
            quoted(dir)
        );
    }
    if let Some(ca) = &args.signed_by
        && args.force
        && same(ca, dir)
    {
        let wrong = format!("--force --signed-by {}: that is the same folder; choose another one", ca.display());
        return Err(usage(wrong));
    }
    make_dir(dir).with_context(|| format!("the folder {} cannot be made", dir.display()))?;
    for file in files {
        write(file).with_context(|| format!("{} cannot be written", file.path.display()))?;
    }
    Ok(())
}

fn same(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

fn make_dir(dir: &Path) -> std::io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir)
}

/// Writes beside and renames, so that a file is whole or not there, and a key is never readable by others, not for a moment.
fn write(file: &Output) -> std::io::Result<()> {
    let mut name = file.path.clone().into_os_string();
    name.push(format!(".{}", std::process::id()));
    let beside = PathBuf::from(name);
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, if file.secret { 0o600 } else { 0o644 });
    let written = options.open(&beside).and_then(|mut f| {
        f.write_all(file.text.as_bytes())?;
        f.sync_all()
    });
    let done = written.and_then(|()| fs::rename(&beside, &file.path));
    if done.is_err() {
        let _ = fs::remove_file(&beside);
    }
    done
}

/// A path as a shell reads it.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    if text.chars().all(|c| c.is_alphanumeric() || "/._-+:@".contains(c)) {
        text
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

fn report(args: &Args, ca: &Ca, names: &str, client: &str, until: OffsetDateTime) -> String {
    let dir = args.dir.canonicalize().unwrap_or_else(|_| args.dir.clone());
    let at = |name: &str| quoted(&dir.join(name));
    let date = until.date();
    let ca_line = match (&ca.new, &args.signed_by) {
        (Some((_, until)), _) => {
            format!("  ca.pem, ca-key.pem          new CA, until {}; ca-key.pem belongs on no server\n", until.date())
        }
        (None, from) => format!("  ca.pem                      from {}\n", from.clone().unwrap_or_default().display()),
    };
    let ca_dir = args.signed_by.as_ref().map_or(dir.clone(), |d| d.canonicalize().unwrap_or_else(|_| d.clone()));
    format!(
        "in {}:\n{ca_line}\
         \x20 server.pem, server-key.pem  for {names}, until {date}\n\
         \x20 client.pem, client-key.pem  client {client}, until {date}\n\
         \n\
         on the server, with ca.pem, server.pem and server-key.pem there:\n\
         \x20 rpc-server -H 0.0.0.0 --tls-cert {} --tls-key {} --client-ca {}\n\
         on the client, with ca.pem, client.pem and client-key.pem there:\n\
         \x20 export OUTBOARD_CA={} OUTBOARD_CERT={} OUTBOARD_KEY={}\n\
         \x20 outboard devices --rpc grpcs://HOST\n\
         for a further server or client of the same CA:\n\
         \x20 outboard cert NEW-FOLDER --signed-by {} --name NAME --client NAME\n",
        dir.display(),
        at("server.pem"),
        at("server-key.pem"),
        at("ca.pem"),
        at("ca.pem"),
        at("client.pem"),
        at("client-key.pem"),
        quoted(&ca_dir),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (text, name) in [
            ("GPU1.lan", Name::Dns("gpu1.lan".into())),
            ("*.lan", Name::Dns("*.lan".into())),
            ("10.0.0.2", Name::Ip([10, 0, 0, 2].into())),
            ("[::1]", Name::Ip(Ipv6Addr::LOCALHOST.into())),
        ] {
            assert_eq!(parse_name(text), Ok(name));
        }
        for text in ["", "a b", "host:50052", "grpcs://host", "-a", "a..b", "a*.lan", &"x".repeat(64)] {
            assert!(parse_name(text).is_err(), "{text}");
        }
        let names = server_names("gpu.lan", &[Name::Ip([10, 0, 0, 2].into()), Name::Dns("localhost".into())]);
        let names: Vec<String> = names.iter().map(Name::to_string).collect();
        assert_eq!(names, ["gpu.lan", "gpu", "localhost", "127.0.0.1", "::1", "10.0.0.2"]);
        assert_eq!(server_names("", &[Name::Dns("x".into())]).len(), 4);
    }

    #[test]
    fn paths_for_a_shell() {
        assert_eq!(quoted(Path::new("/a/b-c.pem")), "/a/b-c.pem");
        assert_eq!(quoted(Path::new("/my keys/it's")), r"'/my keys/it'\''s'");
    }
}
