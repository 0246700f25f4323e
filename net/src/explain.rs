//! What failures of TLS and QUIC mean for the one at this end.

use quinn::ConnectionError;
use rustls::{AlertDescription, CertificateError, Error as TlsError};
use std::io;
use std::time::Duration;

/// A plain connection was answered with TLS.
pub(crate) const TLS_ONLY: &str =
    "it speaks TLS only; write grpcs:// before the address, with --ca and credentials as the server asks";
/// A TLS connection was answered with something else.
pub(crate) const NO_TLS: &str = "it does not speak TLS; if it is an rpc-server that was started without --tls-cert, leave out grpcs:// (then \
                                 nothing is encrypted), or give it a certificate";
const OTHER_CLIENT_CERT: &str = "it does not accept the client certificate";

/// In whose words.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// For a user who connects.
    Client,
    /// For the log of a server.
    Server,
}

/// What an error of a TLS stream means for a client, if TLS caused it.
pub(crate) fn tls_of(error: &io::Error) -> Option<String> {
    error.get_ref()?.downcast_ref::<TlsError>().map(|e| tls(e, Side::Client))
}

/// What an error of TLS means.
pub(crate) fn tls(error: &TlsError, side: Side) -> String {
    match error {
        TlsError::InvalidCertificate(e) if side == Side::Client => server_certificate(e),
        TlsError::InvalidCertificate(e) => format!("its client certificate was refused: {e}"),
        TlsError::NoCertificatesPresented => "it has no client certificate (--cert and --key)".into(),
        TlsError::AlertReceived(alert) => alerted(*alert, side),
        TlsError::InvalidMessage(_) if side == Side::Client => NO_TLS.into(),
        TlsError::InvalidMessage(_) => {
            "it does not speak TLS; the client should write grpcs:// before the address".into()
        }
        TlsError::PeerIncompatible(e) => format!("its TLS is too old, 1.3 is needed ({e:?})"),
        TlsError::NoApplicationProtocol => "it speaks TLS, but not HTTP/2".into(),
        e => format!("TLS failed: {e}"),
    }
}

fn server_certificate(error: &CertificateError) -> String {
    let since = |a: rustls::pki_types::UnixTime, b: rustls::pki_types::UnixTime| {
        span(Duration::from_secs(a.as_secs().saturating_sub(b.as_secs())))
    };
    match error {
        // The latter: a CA of the same name, but with another key.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => UNKNOWN_CA.into(),
        CertificateError::ExpiredContext { time, not_after } => {
            format!("its certificate has expired, {} ago; it needs a new one (outboard cert)", since(*time, *not_after))
        }
        CertificateError::Expired => "its certificate has expired; it needs a new one (outboard cert)".into(),
        CertificateError::NotValidYetContext { time, not_before } => {
            format!(
                "its certificate is valid only in {}; compare the clocks of the two hosts",
                since(*not_before, *time)
            )
        }
        CertificateError::NotValidYet => "its certificate is not valid yet; compare the clocks of the two hosts".into(),
        CertificateError::NotValidForNameContext { expected, presented } => {
            let names: Vec<&str> = presented.iter().map(|p| inner(p)).collect();
            let expected = expected.to_str();
            format!(
                "its certificate is not for {expected} but for {}; use one of these names, or make it a certificate with --name {expected}",
                if names.is_empty() { "no name at all".to_owned() } else { names.join(", ") }
            )
        }
        CertificateError::NotValidForName => "its certificate is for another name than the one in the address".into(),
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "its certificate is not one for servers".into()
        }
        // webpki's CaUsedAsEndEntity, which has no variant here.
        CertificateError::Other(e) => format!("its certificate cannot be used: {e}"),
        e => format!("its certificate is not valid: {e}"),
    }
}

const UNKNOWN_CA: &str =
    "its certificate is not signed by a CA that is trusted here; give that CA's certificate with --ca";

/// `DnsName("x")` as x.
fn inner(presented: &str) -> &str {
    let inner = presented.split_once('(').map_or(presented, |(_, rest)| rest.trim_end_matches(')'));
    inner.trim_matches('"')
}

fn alerted(alert: AlertDescription, side: Side) -> String {
    use AlertDescription as A;
    match (alert, side) {
        (A::CertificateRequired | A::NoCertificate, Side::Client) => {
            "it wants a client certificate; give yours with --cert and --key".into()
        }
        // The latter: a CA of the same name, but with another key.
        (A::UnknownCA | A::DecryptError, Side::Client) => {
            format!("{OTHER_CLIENT_CERT} (--cert): it is from another CA than the one it trusts")
        }
        (A::UnsupportedCertificate, Side::Client) => format!("{OTHER_CLIENT_CERT} (--cert): it is not one for clients"),
        (A::CertificateExpired, Side::Client) => {
            format!("{OTHER_CLIENT_CERT} (--cert): it has expired, or is not valid yet")
        }
        (A::BadCertificate | A::CertificateUnknown | A::CertificateRevoked | A::AccessDenied, Side::Client) => {
            format!("{OTHER_CLIENT_CERT} (--cert): {alert:?}")
        }
        (A::UnknownCA | A::DecryptError, Side::Server) => {
            "it does not trust this server's certificate (it needs --ca)".into()
        }
        (A::CertificateExpired, Side::Server) => "it says that this server's certificate has expired".into(),
        (A::BadCertificate | A::CertificateUnknown | A::UnsupportedCertificate, Side::Server) => {
            format!("it does not accept this server's certificate: {alert:?}")
        }
        (A::NoApplicationProtocol, _) => "it speaks TLS, but is no rpc-server, or one of another release".into(),
        (A::ProtocolVersion, _) => "it does not speak TLS 1.3".into(),
        // What a program answers that took the handshake for something else.
        _ => format!("it refused the TLS handshake: {alert:?}"),
    }
}

/// What the end of a QUIC connection means for a client.
pub(crate) fn quic(error: &ConnectionError) -> String {
    quic_for(error, Side::Client)
}

/// What the end of a QUIC connection means.
pub(crate) fn quic_for(error: &ConnectionError, side: Side) -> String {
    match error {
        ConnectionError::TransportError(e) => match alert(u64::from(e.code)) {
            // Our own alert: the peer's certificate was refused here. The reason is the text of the TLS error.
            Some(AlertDescription::UnknownCA | AlertDescription::DecryptError) if side == Side::Client => {
                UNKNOWN_CA.into()
            }
            Some(AlertDescription::CertificateExpired) if side == Side::Client => {
                // One alert for both.
                let early = e.reason.contains("not valid yet") || e.reason.contains("not valid before");
                server_certificate(if early { &CertificateError::NotValidYet } else { &CertificateError::Expired })
            }
            Some(_) => e.reason.replace("invalid peer certificate", "its certificate is not valid"),
            None => format!("QUIC failed: {e}"),
        },
        ConnectionError::ConnectionClosed(e) => match alert(u64::from(e.error_code)) {
            Some(alert) => alerted(alert, side),
            None if u64::from(e.error_code) == 2 => "it refused the connection: too many are open".into(),
            None => format!("it closed the connection: {e}"),
        },
        ConnectionError::ApplicationClosed(_) => "it closed the connection".into(),
        ConnectionError::Reset => "it has forgotten the connection; it was restarted, or closed it".into(),
        ConnectionError::TimedOut => "it has stopped answering (it hangs, or the network is cut)".into(),
        ConnectionError::VersionMismatch => "it speaks no version of QUIC that this release does".into(),
        e => format!("QUIC failed: {e}"),
    }
}

/// RFC 9001: TLS alerts are codes 0x100 to 0x1ff of QUIC.
fn alert(code: u64) -> Option<AlertDescription> {
    let alert = code.checked_sub(0x100).and_then(|c| u8::try_from(c).ok());
    alert.map(AlertDescription::from)
}

/// A length of time in the largest unit that fits.
fn span(time: Duration) -> String {
    let s = time.as_secs();
    let (n, unit) = match s {
        0..120 => (s, "second"),
        120..7200 => (s / 60, "minute"),
        7200..172_800 => (s / 3600, "hour"),
        _ => (s / 86400, "day"),
    };
    format!("{n} {unit}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans() {
        for (s, text) in
            [(1, "1 second"), (90, "90 seconds"), (7199, "119 minutes"), (90000, "25 hours"), (864_000, "10 days")]
        {
            assert_eq!(span(Duration::from_secs(s)), text);
        }
    }

    #[test]
    fn alerts_of_quic() {
        assert_eq!(alert(0x174), Some(AlertDescription::CertificateRequired));
        assert_eq!((alert(2), alert(0x200)), (None, None));
        assert_eq!(inner("DnsName(\"a.b\")"), "a.b");
        assert_eq!(inner("IpAddress(::1)"), "::1");
    }
}
