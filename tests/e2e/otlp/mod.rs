//! The export over OTLP: to a real collector and a real database, and to collectors that misbehave.

mod faults;
mod real;
mod tls;
mod values;

use fakes::{
    fake_collector::FakeCollector, fake_host::FakeHost, fake_runtime::FakeRuntime,
    running_agent::RunningAgent,
};
use model::device::Generation;

/// An agent that samples a fake workload's metrics, distributions included, and exports them.
struct OtlpAgent {
    agent: RunningAgent,
    _host: FakeHost,
    runtime: FakeRuntime,
}

impl OtlpAgent {
    fn start(settings: &str) -> Self {
        let host = FakeHost::with(Generation::V6e, 4);
        let runtime = FakeRuntime::with_devices(&[0, 1, 2, 3]);
        let settings = format!(
            "{settings}\n[agent]\nhost = 'vm-7'\n[[workload.endpoints]]\nkind = 'runtime_metrics'\naddress = '{}'\n",
            runtime.address()
        );
        let agent = RunningAgent::start(&host, &settings);
        Self { agent, _host: host, runtime }
    }

    /// One that exports every second to `collector`, with further settings of the section.
    fn to(collector: &FakeCollector, rest: &str) -> Self {
        Self::start(&collector.settings(rest))
    }
}
