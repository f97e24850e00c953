//! The project's own tasks: `cargo xtask ci` is the one command that tests everything.
fn main() {
    let status = std::process::Command::new("cargo").args(["test", "--workspace"]).status();
    std::process::exit(i32::from(!status.is_ok_and(|s| s.success())));
}
