//! The operator's command line against real nodes under real calls: what it shows, what it changes, who may, what it
//! does with a terminal, and plans over two nodes.

mod answers;
mod calls;
mod changes;
mod command;
mod configuration;
mod denials;
mod doctor;
mod documents;
mod failures;
mod init;
mod listings;
mod pages;
mod plans;
mod quickstart;
mod roles;
mod routes;
mod terminal;
