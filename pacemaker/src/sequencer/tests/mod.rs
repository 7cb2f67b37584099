//! The sequencer on a real Redis: scripts step by step, and whole pacemakers.

mod check;
mod faults;
mod model;
mod running;
mod scripts;
mod support;
