//! Identity by certificates: which role a certificate gives, what it says, how its files are read, and how an authority of
//! one's own issues certificates.
//!
//! Must never use a private key that every user can read, and never replace a file.

pub mod authority;
pub mod certificate;
pub mod files;
pub mod role;
pub mod tls_fault;
