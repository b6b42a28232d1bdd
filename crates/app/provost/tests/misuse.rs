//! Programs that misuse received messages must not compile, and the compiler must say why.

#[test]
fn misuse_does_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/misuse/*.rs");
}
