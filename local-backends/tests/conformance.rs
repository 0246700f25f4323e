//! Every device of this host against the reference, on every case.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use outboard_backends::{DeviceSpec, local_devices};
use outboard_conformance::{Filter, run};
use outboard_host::Host;

#[test]
fn cpu_devices_compute_what_the_reference_does() {
    let specs = DeviceSpec::parse_list("reference,cpu:1,cpu:3").unwrap();
    let devices = local_devices(&Host::new(), &specs, None, None).unwrap();
    for device in &devices[1..] {
        let report = run(device.as_ref(), devices[0].as_ref(), &Filter::default()).unwrap();
        println!("{report}");
        assert!(report.ok(), "{report}");
    }
}
