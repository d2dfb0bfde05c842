//! Stand-in for libtpu.so.
