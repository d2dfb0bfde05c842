//! libtpu through the child: the real ones, and a stand-in that misbehaves.

mod agent;
mod death;
mod faults;
mod probe;
mod profiler;
mod real;
mod sandbox;
mod supervised;
