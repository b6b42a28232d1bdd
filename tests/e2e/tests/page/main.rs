//! The node's page: who may see it, what it tells, and what people find who look at it with a browser, a keyboard or a screen
//! reader.

mod access;
mod browser;
mod looks;
mod node_page;
mod pictures;
