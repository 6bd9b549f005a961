use proptest::prelude::*;

use super::*;
