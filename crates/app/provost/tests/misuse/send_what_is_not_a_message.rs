use provost::shared::{List, String};

#[derive(Clone, Debug, Default, PartialEq)]
#[repr(C)]
struct Note {
    text: String,
    tags: List<String>,
}

provost::__message!(Note, "test.Note", [text, tags]);

// Private memory means nothing to another process.
struct Private {
    text: std::string::String,
}

fn misuse(private: Private) -> provost::shared::Prepared<Private> {
    provost::shared::Prepared::new(private)
}

fn main() {}
