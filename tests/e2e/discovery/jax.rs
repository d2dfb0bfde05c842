//! A real JAX job on a host without chips.

use fakes::{fake_host::FakeHost, jax_job::JaxJob};
use host::settings::workload::{Discover, Probe, Settings};
use model::workload::{Endpoint, EndpointKind, EndpointOrigin};

use super::{look, owner};

fn settings(probe: Probe) -> Settings {
    Settings { discover: Discover::Any, probe, ..Settings::default() }
}

#[test]
fn jax_without_chips_is_found_with_its_profiler() {
    let host = FakeHost::new();
    let mut job = JaxJob::new().start();
    assert!(look(&host, Settings::default()).owners.is_empty(), "only chips count by default");

    let profiler = |probe| -> Option<Endpoint> {
        let seen = look(&host, settings(probe));
        let owner = owner(&seen, job.pid());
        for package in ["jaxlib", "jax", "python"] {
            let version = owner.versions.get(package);
            assert!(
                version.is_some_and(|version| version.starts_with(|c: char| c.is_ascii_digit())),
                "{package}: {owner:#?}"
            );
        }
        assert!(owner.chips.is_empty() && owner.notes.is_empty(), "{owner:#?}");
        owner.endpoints.first().cloned()
    };
    // Its port is no known default, and nothing names it.
    assert_eq!(profiler(Probe::Named), None);
    let found = profiler(Probe::Listeners).expect("asked, it says that it is a profiler");
    assert_eq!((found.kind, found.origin), (EndpointKind::Profiler, EndpointOrigin::Probe));
    assert_eq!(found.address.to_string(), job.target());
    assert_eq!((found.listeners.len(), found.listeners[0].pid), (1, job.pid()));
    assert_eq!(found.unreachable, None);
    assert!(job.alive());
}

#[test]
fn a_variable_names_the_profiler_of_a_real_job() {
    let host = FakeHost::new();
    let port = free_port();
    let job = JaxJob::new().port(port).variable("TPUSCOPE_PROFILER_PORT", &port.to_string()).start();
    let seen = look(&host, settings(Probe::Named));
    let [endpoint] = &owner(&seen, job.pid()).endpoints[..] else { panic!("{seen:#?}") };
    assert_eq!(endpoint.origin, EndpointOrigin::Variable("TPUSCOPE_PROFILER_PORT".into()));
    assert_eq!((endpoint.address.to_string(), endpoint.unreachable.clone()), (job.target(), None));
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
