//! Schema of resource lists: capacity, reserved, requests and limits.

use schemars::{Schema, SchemaGenerator, json_schema};

use super::{is_qualified, keys, rule};

/// Resources without a prefix that the API server counts in whole numbers.
const WHOLE: &str = "['pods', 'services', 'replicationcontrollers', 'resourcequotas', 'secrets', 'configmaps', 'persistentvolumeclaims', 'services.nodeports', 'services.loadbalancers']";

/// CEL expression: `name` is an extended resource, which exists only in whole numbers.
pub(super) fn is_extended(name: &str) -> String {
    format!("{name}.contains('/') && !{name}.contains('kubernetes.io/') && !{name}.startsWith('requests.')")
}

/// Schema of a resource list; each value is a quantity that is not negative.
pub fn resources(_: &mut SchemaGenerator) -> Schema {
    let text = "string(self[k])";
    let amount = format!("quantity({text})");
    // Quantities that the operator can parse too: below the maximum, nineteen decimals still fit its arithmetic.
    let readable = format!(
        "isQuantity({text}) && {text}.matches('^[+-]?([0-9]+([.][0-9]{{0,19}})?|[.][0-9]{{1,19}})([KMGTPE]i|[numkMGTPE]|[eE][-+]?[0-9]{{1,2}})?$')"
    );
    let each = |rule: &str| format!("self.all(k, !isQuantity({text}) || {rule})");
    // The API server counts thousandths in 64 bits and treats no larger quantity as whole.
    let is_whole = format!(
        "!(k in {WHOLE} || ({})) || {amount}.isLessThan(quantity('0')) || ({amount}.isLessThan(quantity('9P')) && {amount}.sub(int({amount}.asApproximateFloat() + 0.5)).compareTo(quantity('0')) == 0)",
        is_extended("k")
    );
    json_schema!({
        "type": "object",
        "maxProperties": 32,
        "additionalProperties": { "x-kubernetes-int-or-string": true, "maxLength": 32 },
        "x-kubernetes-validations": [
            keys(
                &is_qualified("k"),
                "the name of a resource has at most 63 letters, digits, '-', '_' and '.', after a DNS name and a slash where it is an extended one: write for example memory or example.com/gpu",
            ),
            rule(
                format!("self.all(k, {readable})"),
                "each amount must be a quantity: write for example 4, 500m or 16Gi",
            ),
            rule(each(&format!("!{amount}.isLessThan(quantity('0'))")), "an amount cannot be negative"),
            rule(
                each(&format!("{amount}.isLessThan(quantity('9223372036854775807'))")),
                "an amount is less than 8Ei: write for example 16Gi",
            ),
            rule(
                each(&format!("({is_whole})")),
                "pods and extended resources come in whole numbers, less than 9P: write for example 110",
            )
        ]
    })
}
