// What a client's connection does: which slot takes the next call, and whether a packet that has come is about the call that a slot
// has. Pure decision; the slots' state is in the connection's line.
module client_slot (
    // Slots of the session, and where each stands.
    input logic [3:0] slots,
    input logic [3*nic_pkg::SLOTS-1:0] phases,
    // The lowest free slot.
    output logic free_valid,
    output logic [2:0] free_slot,
    // The slot and the call of a packet.
    input logic [7:0] packet_slot,
    input logic [31:0] packet_call,
    input logic [31:0] slot_call,
    output logic current
);
  always_comb begin
    free_valid = 1'b0;
    free_slot = '0;
    for (int i = nic_pkg::SLOTS - 1; i >= 0; i--) begin
      if (4'(i) < slots && phases[3*i+:3] == nic_pkg::PHASE_IDLE) begin
        free_valid = 1'b1;
        free_slot = 3'(i);
      end
    end
  end

  assign current = packet_slot < {4'd0, slots} && packet_call == slot_call &&
      phases[3*packet_slot[2:0]+:3] == nic_pkg::PHASE_OUT;
endmodule
