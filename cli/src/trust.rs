//! Arguments that say which servers to trust, and who this client is.

use anyhow::{Context, Result, bail};
use outboard_rpc_client::{ClientOptions, ClientTls, TlsFiles, Token};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Largest file of a client's token in bytes.
const TOKEN_FILE: u64 = 64 << 10;
/// Where a token is if no argument says it.
const TOKEN_VAR: &str = "OUTBOARD_TOKEN";

/// Where these arguments stand in the help.
const HEADING: &str = "Trust";

/// Which servers to trust, and who this client is. All of them matter for `grpcs://` and `quic://` servers, the token on loopback, too.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct TrustArgs {
    /// CA that the servers' certificates must be from (PEM) [default: those that the system trusts]
    #[arg(long, env = "OUTBOARD_CA", value_name = "FILE", hide_env_values = true, help_heading = HEADING)]
    ca: Option<PathBuf>,
    /// This client's certificate (PEM), for servers that want one
    #[arg(long, env = "OUTBOARD_CERT", value_name = "FILE", requires = "key", hide_env_values = true, help_heading = HEADING)]
    cert: Option<PathBuf>,
    /// Private key of --cert (PEM)
    #[arg(long, env = "OUTBOARD_KEY", value_name = "FILE", requires = "cert", hide_env_values = true, help_heading = HEADING)]
    key: Option<PathBuf>,
    /// File with this client's token, for servers that want one [default: the token in the variable OUTBOARD_TOKEN]
    #[arg(long, env = "OUTBOARD_TOKEN_FILE", value_name = "FILE", hide_env_values = true, help_heading = HEADING)]
    token_file: Option<PathBuf>,
    /// Environment variable that has the token, in place of a file or OUTBOARD_TOKEN
    #[arg(long, value_name = "NAME", help_heading = HEADING)]
    token_env: Option<String>,
}

impl TrustArgs {
    /// Reads the files. Errors name them, and never say a token.
    pub(crate) fn options(&self) -> Result<ClientOptions> {
        let files = TlsFiles { ca: self.ca.clone(), cert: self.cert.clone(), key: self.key.clone() };
        Ok(ClientOptions { tls: ClientTls::load(files)?, token: self.token()?, ..Default::default() })
    }

    fn token(&self) -> Result<Option<Token>> {
        if let Some(name) = &self.token_env {
            let Some(token) = variable(name)? else {
                bail!("--token-env {name}: there is no such variable, or it is empty")
            };
            return Ok(Some(token));
        }
        match &self.token_file {
            Some(path) => read(path).with_context(|| format!("--token-file {}", path.display())).map(Some),
            None => variable(TOKEN_VAR),
        }
    }
}

fn variable(name: &str) -> Result<Option<Token>> {
    match std::env::var(name) {
        Ok(text) if text.trim().is_empty() => Ok(None),
        Ok(text) => Ok(Some(Token::new(&text).with_context(|| format!("variable {name}"))?)),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => bail!("variable {name}: a token is ASCII"),
    }
}

/// The token alone, or behind a name, as in the server's file.
fn read(path: &Path) -> Result<Token> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(TOKEN_FILE).read_to_string(&mut text)?;
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let (Some(line), None) = (lines.next(), lines.next()) else {
        bail!("it should have one line with this client's token");
    };
    let mut words = line.split_whitespace();
    match (words.next(), words.next(), words.next()) {
        (Some(token), None, _) | (Some(_), Some(token), None) => Ok(Token::new(token)?),
        _ => bail!("it should have one line with this client's token"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_file_has_one_token() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let with = |text: &str| {
            std::fs::write(&path, text).unwrap();
            read(&path)
        };
        let token = Token::new("0123456789abcdef").unwrap();
        for text in ["0123456789abcdef", "\n# mine\nlaptop 0123456789abcdef\n"] {
            assert_eq!(with(text).unwrap(), token);
        }
        for text in ["", "a b 0123456789abcdef", "0123456789abcdef\n0123456789abcdef", "short"] {
            assert!(with(text).is_err(), "{text}");
        }
    }
}
