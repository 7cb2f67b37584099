//! One integration binary, a module per capability.
