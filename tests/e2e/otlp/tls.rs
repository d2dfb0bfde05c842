//! A collector behind mutual TLS, whose authority the settings name.

use std::{
    net::SocketAddr,
    sync::{Arc, mpsc},
};

use cluster::identity::files::IdentityFiles;
use fakes::{
    fake_collector::FakeCollector,
    wait::{eventually, until},
};
use rustls::{ServerConfig, server::WebPkiClientVerifier};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsAcceptor;

use super::OtlpAgent;
use crate::hosts::remote_agent::Authority;

/// TLS before a collector, on a thread that goes with the test process.
fn tls_before(collector: SocketAddr, authority: &Authority, name: &str) -> SocketAddr {
    let files = IdentityFiles::in_folder(&authority.of(name)).read().unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let clients =
        WebPkiClientVerifier::builder_with_provider(Arc::new(files.authorities), Arc::clone(&provider));
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(clients.build().unwrap())
        .with_single_cert(files.chain, files.key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            tell.send(listener.local_addr().unwrap()).unwrap();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    // A client that is refused, or leaves, is what the test looks at.
                    let Ok(mut inner) = acceptor.accept(stream).await else { return };
                    let mut outer = TcpStream::connect(collector).await.unwrap();
                    let _ = copy_bidirectional(&mut inner, &mut outer).await;
                });
            }
        });
    });
    told.recv().unwrap()
}

#[test]
fn a_collector_with_tls_is_proved_and_gets_the_certificate_of_the_agent() {
    let (authority, other) = (Authority::usual(), Authority::usual());
    let collector = FakeCollector::start();
    let port = tls_before(collector.address(), &authority, "127.0.0.1").port();
    let exporting = |host: &str, trusted: &Authority, rest: &str| {
        OtlpAgent::start(&format!(
            "[export.otlp]\nendpoint = 'https://{host}:{port}'\ninterval = '1s'\nca = '{}/ca.pem'\n{rest}",
            trusted.of("alice").display()
        ))
    };
    let told = |exporting: &OtlpAgent, texts: [&str; 2]| {
        let line = eventually(texts[0], || {
            let log = exporting.agent.log();
            log.lines().find(|line| line.contains("metrics were not exported")).map(str::to_owned)
        });
        assert!(texts.iter().all(|text| line.contains(text)), "{texts:?} {line}");
    };
    let folder = authority.of("alice").display().to_string();
    let certificate = format!("cert = '{folder}/cert.pem'\nkey = '{folder}/key.pem'\n");

    let stranger = exporting("127.0.0.1", &other, &certificate);
    told(
        &stranger,
        [
            "TLS with the collector failed",
            "name the authority of the collector's certificate in export.otlp.ca",
        ],
    );
    let nobody = exporting("127.0.0.1", &authority, "");
    told(&nobody, ["the connection to the collector ended", "which export.otlp.cert and key name"]);
    assert_eq!(collector.messages(), 0);

    let known = exporting("localhost", &authority, &certificate);
    until("an export", || collector.messages() > 0);
    assert!(!known.agent.log().contains("not exported"), "{}", known.agent.log());
}
