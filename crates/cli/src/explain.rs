//! Errors as text.

/// An error and its causes, separated by colons. A cause that the text already has is left out:
/// errors of `feroce` name their causes and also return them as sources.
pub(crate) fn explain(error: &anyhow::Error) -> String {
    error.chain().fold(String::new(), |mut text, cause| {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            text.push_str(if text.is_empty() { "" } else { ": " });
            text.push_str(&cause);
        }
        text
    })
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;
    use feroce::Settings;

    use super::*;

    #[test]
    fn a_cause_is_named_once() {
        let error = Settings::default().set("gso", "x").context("reading").unwrap_err();
        assert_eq!(explain(&error), "reading: gso = \"x\": expected 1 or 0");
        let plain = std::fs::read("/nowhere/at/all").context("cannot read it").unwrap_err();
        assert_eq!(explain(&plain), "cannot read it: No such file or directory (os error 2)");
        assert_eq!(explain(&anyhow::anyhow!("alone")), "alone");
    }
}
