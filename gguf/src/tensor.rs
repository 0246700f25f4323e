//! The tensors of a file: the table that says what and where they are, and GGUF's numbers of types.

use crate::reader::Reader;
use crate::{GgufError, MAX_EXTENT, MAX_OFFSET, limited, shown};
use outboard_core::{DIMS, DType, Layout};

/// One tensor of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Type, shape, contiguous strides.
    pub layout: Layout,
    /// Which of the model's files has it; 0 if there is one.
    pub file: usize,
    /// First byte of its data in that file.
    pub offset: usize,
}

impl TensorInfo {
    /// Which bytes it has.
    pub fn range(&self) -> FileRange {
        FileRange { file: self.file, offset: self.offset as u64, len: self.layout.span() as u64 }
    }

    /// Which bytes a part of it has; `None` if it has no such part.
    pub fn range_of(&self, part: Part) -> Option<FileRange> {
        let whole = self.range();
        let Part::Rows { first, count } = part else { return Some(whole) };
        let [rows, row] = [self.layout.rows(), self.layout.nb()[1]].map(|n| n as u64);
        if first.checked_add(count)? > rows {
            return None;
        }
        Some(FileRange { offset: whole.offset + first * row, len: count * row, ..whole })
    }
}

/// Weights: a tensor of a model, or a part of it. By this they are known from the file to the memory that holds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WeightRef {
    /// Which of the model's files has it.
    pub file: usize,
    /// Its number among the [tensors](crate::Gguf::tensors) of all files.
    pub tensor: usize,
    /// What of it.
    pub part: Part,
}

/// What of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// All.
    Whole,
    /// Rows of `ne[0]` elements that lie behind one another, such as those of some experts, or of a part of a matrix.
    Rows {
        /// The first of them.
        first: u64,
        /// How many.
        count: u64,
    },
}

/// Bytes of one of a model's files, such as those of a tensor: what they are known by where the bytes themselves are not at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileRange {
    /// Which of the model's files.
    pub file: usize,
    /// The first byte.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
}

/// Reads one entry of the tensor table; its offset is still relative to the data.
pub(crate) fn read_tensor(r: &mut Reader, i: usize) -> Result<TensorInfo, GgufError> {
    let name = r.name(&format!("the name of tensor {i}"))?;
    let shown = shown(&name);
    let n_dims = r.u32(&shown)?;
    if n_dims as usize > DIMS {
        return Err(GgufError::Limit {
            what: format!("dimensions of tensor {shown}"),
            value: n_dims.into(),
            max: DIMS as u64,
        });
    }
    let mut ne = [1; DIMS];
    for extent in ne.iter_mut().take(n_dims as usize) {
        *extent = limited(r.u64(&shown)?, MAX_EXTENT, &format!("an extent of tensor {shown}"))?;
    }
    let kind = r.u32(&shown)?;
    let dtype = dtype_of(kind).map_err(|ty| {
        GgufError::Invalid(format!("tensor {shown} has type {ty} ({kind} in the file), which is not supported"))
    })?;
    let layout = Layout::contiguous(dtype, ne).map_err(|e| GgufError::Invalid(format!("tensor {shown}: {e}")))?;
    let offset = limited(r.u64(&shown)?, MAX_OFFSET, &format!("the offset of tensor {shown}"))?;
    Ok(TensorInfo { name, layout, file: 0, offset })
}

/// No two tensors may share bytes: a file in which they do was not made by a converter.
pub(crate) fn check_overlap(tensors: &[TensorInfo]) -> Result<(), GgufError> {
    let mut order: Vec<&TensorInfo> = tensors.iter().filter(|t| t.layout.span() > 0).collect();
    order.sort_by_key(|t| t.offset);
    for pair in order.windows(2) {
        if let [a, b] = pair
            && a.offset + a.layout.span() > b.offset
        {
            return Err(GgufError::Invalid(format!("tensors {} and {} overlap", shown(&a.name), shown(&b.name))));
        }
    }
    Ok(())
}

/// GGUF's numbers of types and the names of those that are not supported.
const TYPES: [(u32, Result<DType, &str>); 42] = [
    (0, Ok(DType::F32)),
    (1, Ok(DType::F16)),
    (2, Ok(DType::Q4_0)),
    (3, Ok(DType::Q4_1)),
    (4, Err("Q4_2")),
    (5, Err("Q4_3")),
    (6, Ok(DType::Q5_0)),
    (7, Ok(DType::Q5_1)),
    (8, Ok(DType::Q8_0)),
    (9, Err("Q8_1")),
    (10, Ok(DType::Q2_K)),
    (11, Ok(DType::Q3_K)),
    (12, Ok(DType::Q4_K)),
    (13, Ok(DType::Q5_K)),
    (14, Ok(DType::Q6_K)),
    (15, Err("Q8_K")),
    (16, Err("IQ2_XXS")),
    (17, Err("IQ2_XS")),
    (18, Err("IQ3_XXS")),
    (19, Err("IQ1_S")),
    (20, Ok(DType::IQ4_NL)),
    (21, Err("IQ3_S")),
    (22, Err("IQ2_S")),
    (23, Ok(DType::IQ4_XS)),
    (24, Err("I8")),
    (25, Err("I16")),
    (26, Ok(DType::I32)),
    (27, Err("I64")),
    (28, Err("F64")),
    (29, Err("IQ1_M")),
    (30, Ok(DType::BF16)),
    (31, Err("Q4_0_4_4")),
    (32, Err("Q4_0_4_8")),
    (33, Err("Q4_0_8_8")),
    (34, Err("TQ1_0")),
    (35, Err("TQ2_0")),
    (36, Err("IQ4_NL_4_4")),
    (37, Err("IQ4_NL_4_8")),
    (38, Err("IQ4_NL_8_8")),
    (39, Ok(DType::MXFP4)),
    (40, Err("NVFP4")),
    (41, Err("Q1_0")),
];

fn dtype_of(kind: u32) -> Result<DType, &'static str> {
    TYPES.iter().find(|(k, _)| *k == kind).map_or(Err("unknown"), |(_, d)| *d)
}

/// GGUF's number of a type that files can hold.
pub(crate) fn number_of(dtype: DType) -> Option<u32> {
    TYPES.iter().find(|(_, d)| *d == Ok(dtype)).map(|(k, _)| *k)
}
