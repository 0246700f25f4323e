//! Products of whole numbers (VK_KHR_shader_integer_dot_product): four signed bytes with four at once, weights with columns that were made bytes.

use ash::vk;
use outboard_core::DeviceKind;

/// Environment variable: 1 lets products of whole numbers be used wherever a driver has them, 0 nowhere. Without it, where the driver says
/// that its card has instructions for them.
pub const DOT: &str = "OUTBOARD_VULKAN_DOT";

/// What a driver has of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dot {
    /// Nothing.
    Absent,
    /// Put together from other instructions.
    Emulated,
    /// Instructions of the card.
    Accelerated,
}

impl Dot {
    /// What a device of this kind has that has the extension. Processors have no instructions, whatever their driver says.
    pub(crate) fn of(instance: &ash::Instance, device: vk::PhysicalDevice, kind: DeviceKind) -> Dot {
        let mut offered = vk::PhysicalDeviceShaderIntegerDotProductFeatures::default();
        let mut features = vk::PhysicalDeviceFeatures2::default().push_next(&mut offered);
        let mut told = vk::PhysicalDeviceShaderIntegerDotProductProperties::default();
        let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut told);
        // SAFETY: a physical device of this instance that has the extension, and structures that it may fill.
        unsafe {
            instance.get_physical_device_features2(device, &mut features);
            instance.get_physical_device_properties2(device, &mut properties);
        }
        let has_instructions =
            told.integer_dot_product4x8_bit_packed_signed_accelerated != 0 && kind != DeviceKind::Cpu;
        match (offered.shader_integer_dot_product != 0, has_instructions) {
            (false, _) => Dot::Absent,
            (true, false) => Dot::Emulated,
            (true, true) => Dot::Accelerated,
        }
    }

    /// Whether it is used, if the variable says this.
    pub(crate) fn is_wanted(self, variable: &str) -> bool {
        match (self, variable) {
            (Dot::Absent, _) | (_, "0") => false,
            (_, "1") => true,
            _ => self == Dot::Accelerated,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Dot;

    #[test]
    fn what_a_card_has_is_used_unless_something_is_said() {
        let said = ["", "0", "1"];
        assert_eq!(said.map(|value| Dot::Accelerated.is_wanted(value)), [true, false, true]);
        assert_eq!(said.map(|value| Dot::Emulated.is_wanted(value)), [false, false, true]);
        assert_eq!(said.map(|value| Dot::Absent.is_wanted(value)), [false; 3]);
    }
}
