//! The sequencer on a real Redis: scripts step by step, and whole pacemakers.

mod check;
mod cost;
mod crashes;
mod faults;
mod largest;
mod model;
mod reference;
mod removal;
mod running;
mod scripts;
mod support;
mod time;
