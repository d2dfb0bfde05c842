//! The hooks of Slurm: the scripts, the commands that they call, and both in a real Slurm.

mod check;
mod cluster;
mod commands;
mod scripts;
