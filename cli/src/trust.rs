//! Arguments that say which servers to trust, and who this client is.

use crate::args::usage;
use anyhow::{Context, Result, bail};
use outboard::{ClientTls, ConnectOptions, TlsFiles, Token, read_token};
use std::path::PathBuf;

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
    pub(crate) fn options(&self) -> Result<ConnectOptions> {
        let files = TlsFiles { ca: self.ca.clone(), cert: self.cert.clone(), key: self.key.clone() };
        Ok(ConnectOptions { tls: ClientTls::load(files)?, token: self.token()?, ..Default::default() })
    }

    fn token(&self) -> Result<Option<Token>> {
        if let Some(name) = &self.token_env {
            let Some(token) = variable(name)? else {
                return Err(usage(format_args!("--token-env {name}: there is no such variable, or it is empty")));
            };
            return Ok(Some(token));
        }
        match &self.token_file {
            Some(path) => Ok(Some(read_token(path).context("--token-file")?)),
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
