//! `tpuscope certs`: an authority, its certificates, and what a file says.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
};

use fakes::command::run as run_tpuscope;

use super::remote_agent::Authority;
use crate::schema::Schema;

#[test]
fn certificates_are_issued_shown_and_never_replaced() {
    let authority = Authority::none();
    authority.certs(&["init", "ca"]);
    let issued = authority.certs(&["issue", "ca", "--agent", "tpu-[1-2]", "10.0.0.7", "--days", "30"]);
    assert_eq!(issued.stdout.lines().count(), 3, "{issued:?}");
    assert!(issued.stdout.starts_with("ca/tpu-1: agent tpu-1, valid from "), "{issued:?}");
    let key = fs::metadata(authority.of("ca/tpu-1/key.pem")).unwrap();
    assert_eq!(key.permissions().mode() & 0o777, 0o600);
    let shown = authority.certs(&["show", "ca/10.0.0.7/cert.pem"]).stdout;
    assert!(shown.contains("role     agent\nnames    10.0.0.7\n"), "{shown}");
    assert!(shown.contains(": expires in 29 days\n"), "{shown}");
    let json = authority.certs(&["show", "ca/ca.pem", "--json"]).json();
    Schema::open("certs-show").admits(&json);
    assert_eq!(json["certificates"][0]["authority"], true);
    let refused = |words: &[&str], code, says: &str| {
        run_tpuscope(authority.folder(), &[&["certs"], words].concat()).failed(code, says);
    };
    refused(&["init", "ca"], 7, "ca/ca-key.pem exists");
    refused(&["issue", "ca", "--agent", "tpu-1"], 7, "ca/tpu-1/key.pem exists");
    // Of several names all get a certificate, or none.
    refused(&["issue", "ca", "--agent", "tpu-8", "tpu-1", "tpu-9"], 7, "ca/tpu-1/key.pem exists");
    refused(&["issue", "ca", "--agent", "tpu-[8-9],tpu-8"], 2, "tpu-8 is named twice");
    fs::write(authority.of("ca/tpu-9"), "a file where a folder is to be").unwrap();
    let ended = run_tpuscope(authority.folder(), &["certs", "issue", "ca", "--agent", "tpu-[8-9]"]);
    assert!(ended.code != Some(0) && ended.stdout.is_empty(), "{ended:?}");
    assert!(!authority.of("ca/tpu-8").exists(), "{ended:?}");
    refused(&["issue", "none", "--operator", "x"], 5, "cannot read none/ca.pem");
    refused(&["issue", "ca", "--operator", "../x"], 2, "is no name");
    refused(&["issue", "ca", "--agent", "a b"], 2, "white space");
    refused(&["issue", "ca"], 2, "required");
    refused(&["show", "ca/ca-key.pem"], 8, "it has a private key, and no certificate");
    refused(&["show", "none.pem"], 5, "cannot read none.pem");
    fs::set_permissions(authority.of("ca/ca-key.pem"), Permissions::from_mode(0o644)).unwrap();
    refused(&["issue", "ca", "--operator", "x"], 4, "ca/ca-key.pem has the mode 0644");
}

/// `openssl verify` agrees that a certificate is of its authority.
#[test]
fn openssl_accepts_what_is_issued() {
    let authority = Authority::usual();
    for (name, purpose) in [("127.0.0.1", "sslserver"), ("alice", "sslclient"), ("bob", "sslclient")] {
        let verified = std::process::Command::new("openssl")
            .args(["verify", "-x509_strict", "-purpose", purpose, "-CAfile"])
            .arg(authority.of("ca/ca.pem"))
            .arg(authority.of(name).join("cert.pem"))
            .output()
            .expect("openssl is installed");
        assert!(verified.status.success(), "{verified:?}");
    }
}
