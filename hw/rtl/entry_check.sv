// Whether an entry of the host can be, by its connection and the slot that it is about; if not, why. Pure decision.
module entry_check (
    input nic_pkg::entry_t entry,
    // The connection, and the slot.
    input logic valid,
    input logic server,
    input logic [3:0] slots,
    input logic [2:0] slot,
    input logic [31:0] slot_call,
    input logic [2:0] slot_phase,
    input logic [15:0] payload_max,
    // A slot is free, and neither the flow nor the NIC has as many calls as it may.
    input logic may_begin,
    output logic good,
    output logic [15:0] error,
    // Bytes of the message that the entry is a packet of.
    output logic [31:0] message
);
  localparam int BITS = nic_pkg::MESSAGE_BYTES_BITS;

  logic [15:0] number;
  logic shape_good;
  assign number = entry.remote[47:32];
  // A host that says nothing of the message means this packet.
  assign message = (entry.remote[31:0] == 32'd0) ? 32'(entry.bytes) : entry.remote[31:0];
  assign shape_good = entry.bytes <= payload_max && number < 16'(nic_pkg::MESSAGE_PACKETS) && 32'(entry.bytes) <= message &&
      message <= 32'(BITS'(nic_pkg::MESSAGE_PACKETS) * BITS'(payload_max));

  always_comb begin
    error = nic_pkg::ERROR_DESCRIPTOR;
    good = 1'b0;
    case (entry.kind)
      nic_pkg::ENTRY_RAW: good = 1'b1;
      nic_pkg::ENTRY_REQUEST: begin
        if (!valid || server) error = nic_pkg::ERROR_CONNECTION;
        else if (!shape_good || number != 16'd0) error = nic_pkg::ERROR_TOO_LARGE;
        else if (!may_begin) error = nic_pkg::ERROR_BUSY;
        else good = 1'b1;
      end
      nic_pkg::ENTRY_RESPONSE: begin
        if (!valid || !server) error = nic_pkg::ERROR_CONNECTION;
        else if (!shape_good) error = nic_pkg::ERROR_TOO_LARGE;
        else if ({1'b0, slot} >= slots || entry.tag[31:0] != slot_call ||
                 (slot_phase != nic_pkg::PHASE_EXECUTING && slot_phase != nic_pkg::PHASE_RESPONDED))
          error = nic_pkg::ERROR_STALE;
        else good = 1'b1;
      end
      nic_pkg::ENTRY_FRAGMENT: begin
        if (!valid || server) error = nic_pkg::ERROR_CONNECTION;
        else if (!shape_good) error = nic_pkg::ERROR_TOO_LARGE;
        else if (entry.tag[31:0] != slot_call || slot_phase != nic_pkg::PHASE_OUT) error = nic_pkg::ERROR_STALE;
        else good = 1'b1;
      end
      default: good = 1'b0;
    endcase
  end

  /* verilator lint_off UNUSEDSIGNAL */
  logic unused;
  assign unused = &{1'b0, entry};
  /* verilator lint_on UNUSEDSIGNAL */
endmodule
