//! What to do about an export over OTLP that fails. The agent has it in its log.

use export::otlp::ExportFault;

/// What to do about a fault of `[export.otlp]`.
pub(crate) fn otlp(fault: ExportFault) -> &'static str {
    match fault {
        ExportFault::Files => "correct the file; the agent reads it again",
        ExportFault::Connection => {
            "start the collector, or correct export.otlp.endpoint; the agent's unit must be allowed to reach another host: \
             docs/export.md has the drop-in"
        }
        ExportFault::Tls => {
            "name the authority of the collector's certificate in export.otlp.ca, and in export.otlp.endpoint a host of that \
             certificate; a certificate that is its own authority (CA:TRUE) is not taken as a host's: sign another one with it"
        }
        ExportFault::NoTls => {
            "the collector has to speak TLS 1.3 with HTTP/2 for https://; one without TLS is reached with http://, on an address of \
             the loopback"
        }
        ExportFault::Lost => {
            "export.otlp.endpoint has to be a receiver of OTLP metrics over gRPC (usually port 4317; 4318 is OTLP over HTTP); one \
             with TLS needs https://, and may ask for a certificate, which export.otlp.cert and key name"
        }
        ExportFault::NoService | ExportFault::Answer => {
            "export.otlp.endpoint has to be a receiver of OTLP metrics over gRPC (usually port 4317; 4318 is OTLP over HTTP)"
        }
        ExportFault::Silent => {
            "look at the load of the collector and the network, or raise export.otlp.timeout"
        }
        ExportFault::Credentials => {
            "put what the collector asks for into export.otlp.headers_file, or name export.otlp.cert and key"
        }
        ExportFault::Overloaded => "give the collector more room, or raise export.otlp.interval",
        ExportFault::Unavailable => "look at the log of the collector",
        ExportFault::Refused | ExportFault::Rejected => {
            "look at the log of the collector, and compare its clock with that of this host"
        }
    }
}
