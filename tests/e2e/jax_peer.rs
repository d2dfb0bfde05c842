//! The real JAX job that other tests stand on.

use std::{net::TcpStream, time::Duration};

use fakes::jax_job::JaxJob;

#[test]
fn a_job_listens_steps_and_dies_with_its_guard() {
    let job = JaxJob::new().step_ms(5).log_steps().start();
    let at = job.target();
    assert!(TcpStream::connect(&at).is_ok());
    let line = job.next_line(Duration::from_secs(30)).expect("a step");
    assert!(line.starts_with("step "), "{line}");
    drop(job);
    assert!(TcpStream::connect(&at).is_err());
}
