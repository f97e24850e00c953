//! The command's tests, in one program.

mod captures;
mod config;
mod decode;
mod demo;
mod devices;
mod disk;
mod disk_errors;
mod doctor;
mod dropin;
mod fabric;
mod inside;
mod kills;
mod limits;
mod perf;
mod pingpong;
mod portd;
mod ports;
mod rpc;
mod web;
