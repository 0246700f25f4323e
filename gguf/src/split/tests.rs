use super::*;
use crate::{GgufWriter, Value};
use outboard_core::DType;
use std::collections::HashMap;

/// A folder of files in memory.
#[derive(Clone, Default)]
struct Folder(HashMap<PathBuf, Bytes>);

impl Folder {
    fn put(&mut self, name: &str, file: GgufWriter) {
        self.0.insert(Path::new("/models").join(name), file.finish().unwrap().into());
    }

    fn open(&self, name: &str) -> Result<Gguf, GgufError> {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        Gguf::open(&Path::new("/models").join(name), |path| self.0.get(path).cloned().ok_or_else(missing))
    }

    /// What is wrong, whichever file is opened.
    fn error(&self, names: &[&str]) -> String {
        let errors: Vec<String> = names.iter().map(|name| self.open(name).unwrap_err().to_string()).collect();
        assert!(errors.iter().all(|e| *e == errors[0]), "{errors:?}");
        errors[0].clone()
    }
}

const NAMES: [&str; 3] = ["m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"];

/// A file as gguf-split writes it, with tensors of one number each.
fn file(no: u16, count: u16, all: i32, tensors: &[&str]) -> GgufWriter<'static> {
    let mut w = GgufWriter::new();
    w.text("general.name", &format!("number {no}"));
    w.value(NO, no).value(COUNT, count).value(TENSORS, all);
    for name in tensors {
        w.tensor(name, DType::F32, &[1], &[name.as_bytes()[0]; 4]).unwrap();
    }
    w
}

/// For closures that give nothing.
fn done(_: &mut GgufWriter) {}

/// A model of three tensors.
fn three() -> Folder {
    let mut folder = Folder::default();
    // The first file may have none.
    folder.put(NAMES[0], file(0, 3, 3, &[]));
    folder.put(NAMES[1], file(1, 3, 3, &["a", "b"]));
    folder.put(NAMES[2], file(2, 3, 3, &["c"]));
    folder
}

#[test]
fn any_of_the_files_opens_all_of_them() {
    for name in NAMES {
        let gguf = three().open(name).unwrap();
        assert_eq!(gguf.str("general.name"), Some("number 0"));
        let keys: Vec<&str> = gguf.metadata().map(|(key, _)| key).collect();
        assert_eq!(keys, ["general.name"]);
        assert_eq!(gguf.paths(), NAMES.map(|n| Path::new("/models").join(n)));
        assert_eq!((gguf.files().len(), gguf.tensors().len()), (3, 3));
        for (name, file) in [("a", 1), ("b", 1), ("c", 2)] {
            let tensor = gguf.tensor(name).unwrap();
            assert_eq!((tensor.file, tensor.range().file, tensor.range().len), (file, file, 4));
            assert_eq!(gguf.data(tensor)[..], [name.as_bytes()[0]; 4]);
            assert_eq!(gguf.bytes(tensor.range()), gguf.data(tensor));
        }
        assert_eq!(gguf.file_bytes(), three().0.values().map(|f| f.len() as u64).sum::<u64>());
        // In one file again.
        let one = Gguf::parse(GgufWriter::from(&gguf).finish().unwrap().into()).unwrap();
        assert_eq!((one.files().len(), one.paths().len(), one.tensors().len()), (1, 0, 3));
        assert!(gguf.tensors().iter().all(|t| one.data(one.tensor(&t.name).unwrap()) == gguf.data(t)));
    }
}

#[test]
fn a_file_by_itself_needs_no_others() {
    for count in [0, 1] {
        let mut folder = Folder::default();
        folder.put("m.gguf", file(0, count, 1, &["a"]));
        assert_eq!(folder.open("m.gguf").unwrap().tensors().len(), 1);
    }
    // Nor does one whose name only looks like that of one of several.
    let mut folder = Folder::default();
    folder.put(NAMES[1], GgufWriter::new());
    assert_eq!(folder.open(NAMES[1]).unwrap().paths(), [Path::new("/models").join(NAMES[1])]);
    let bytes = three().0[&Path::new("/models").join(NAMES[1])].clone();
    let error = Gguf::parse(bytes).unwrap_err().to_string();
    assert!(error.starts_with("this is file 2 of 3 of a model; open it by its name"), "{error}");
}

#[test]
fn missing_and_broken_files_are_named() {
    let mut folder = three();
    let missing = Path::new("/models").join(NAMES[2]);
    folder.0.remove(&missing);
    let error = folder.error(&NAMES[..2]);
    let expected = "there is no such file, but the model is in 3 files, which must lie in one folder; download it, too";
    assert_eq!(error, format!("{}: {expected}", missing.display()));
    assert!(
        folder.open(NAMES[2]).unwrap_err().to_string().starts_with("/models/m-00003-of-00003.gguf: cannot be read")
    );
    folder.0.insert(missing.clone(), Bytes::from_static(b"<html>"));
    assert_eq!(folder.error(&NAMES), format!("{}: not a GGUF file", missing.display()));
    folder.put(NAMES[2], GgufWriter::new());
    assert!(
        folder.error(&NAMES[..2]).contains("it has the name of file 3 of 3 of a model, but it is a model by itself")
    );
    let denied = |path: &Path| {
        if path == missing {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(three().0[path].clone())
    };
    let error = Gguf::open(&Path::new("/models").join(NAMES[0]), denied).unwrap_err().to_string();
    assert!(error.starts_with("/models/m-00003-of-00003.gguf: cannot be read: permission denied"), "{error}");
}

#[test]
fn swapped_and_renamed_files_are_named() {
    let mut folder = three();
    folder.put(NAMES[1], file(2, 3, 3, &["c"]));
    folder.put(NAMES[2], file(1, 3, 3, &["a", "b"]));
    let error = folder.error(&NAMES[..1]);
    let expected = "it has the name of file 2 of 3 of a model, but says that it is file 3 of 3 (split.no, split.count)";
    assert_eq!(error, format!("/models/{}: {expected}; download it again", NAMES[1]));
    for (name, ending) in [(NAMES[1], "-00003-of-00003.gguf"), (NAMES[2], "-00002-of-00003.gguf")] {
        let error = folder.open(name).unwrap_err().to_string();
        assert!(error.contains(&format!("its name does not end with {ending}; give all of them the names")), "{error}");
    }
    folder.put("renamed.gguf", file(0, 3, 3, &[]));
    let error = folder.open("renamed.gguf").unwrap_err().to_string();
    assert!(error.starts_with("/models/renamed.gguf: it says that it is file 1 of 3 of a model"), "{error}");
    // Of another model that is in more files.
    let mut folder = three();
    folder.put(NAMES[2], file(2, 4, 3, &["c"]));
    assert!(folder.error(&NAMES[..2]).contains("but says that it is file 3 of 4"));
}

#[test]
fn numbers_of_tensors_must_be_right() {
    let with = |no: usize, all: i32, tensors: &[&str]| {
        let mut folder = three();
        folder.put(NAMES[no], file(no as u16, 3, all, tensors));
        folder
    };
    let twice = with(2, 3, &["a"]).error(&NAMES);
    let expected = "tensor a is in file 3 and in file 2: they are not of one model; download them again";
    assert_eq!(twice, format!("/models/{}: {expected}", NAMES[2]));
    let few = with(2, 3, &[]).open(NAMES[1]).unwrap_err().to_string();
    assert!(few.contains("files 1 to 3 of 3 have 2 tensors, split.tensors.count says 3 in all of them"), "{few}");
    let many = with(1, 3, &["a", "b", "d", "e"]).error(&NAMES);
    assert!(many.starts_with("/models/m-00002-of-00003.gguf: files 1 to 2 of 3 have 4 tensors"), "{many}");
    let other = with(2, 9, &["c"]).error(&NAMES[..2]);
    assert!(
        other.contains("it is of a model of 9 tensors (split.tensors.count), and others beside it of one of 3"),
        "{other}"
    );
}

#[test]
fn hostile_counts_open_nothing() {
    let opened = |edit: &dyn Fn(&mut GgufWriter)| {
        let mut w = file(0, 3, 3, &[]);
        edit(&mut w);
        let bytes = Bytes::from(w.finish().unwrap());
        let mut files = 0;
        let open = |_: &Path| {
            files += 1;
            Ok(bytes.clone())
        };
        let error = Gguf::open(Path::new(NAMES[0]), open).unwrap_err().to_string();
        assert_eq!(files, 1, "{error}");
        error
    };
    let set = |key: &'static str, value: Value| opened(&move |w| done(w.value(key, value.clone())));
    assert!(set(COUNT, u16::MAX.into()).ends_with("split.count is 65535, at most 1024 is possible"));
    assert!(set(COUNT, u64::MAX.into()).contains("at most 1024 is possible"));
    assert!(set(COUNT, "3".into()).contains("split.count is not a whole number"));
    assert!(set(NO, 3u16.into()).contains("split.no is 3, at most 2 is possible"));
    assert!(set(NO, (-1i32).into()).contains("split.no is not a whole number"));
    assert!(set(TENSORS, (-1i32).into()).contains("split.tensors.count is not a whole number"));
    assert!(set(TENSORS, i32::MAX.into()).contains("split.tensors.count is 2147483647, at most 65536 is possible"));
    let mut w = GgufWriter::new();
    w.value(COUNT, 3u16).value(NO, 0u16);
    let mut folder = Folder::default();
    folder.put(NAMES[0], w);
    assert!(folder.open(NAMES[0]).unwrap_err().to_string().contains("split.tensors.count is missing"));
}
