//! Bindings of libtpu.
