// Tells the host in each flow's status line how many entries the NIC has taken, whenever that has changed: in its first two bytes.
// The host learns by it which slots of its transmit ring are free again.
module status_writer #(
    parameter int FLOWS = 4,
    parameter int FLOW_BITS = 2
) (
    input logic clk,
    input logic rst,
    input logic [FLOWS-1:0] flow_enable,
    input logic [32*FLOWS-1:0] flow_status,
    input logic [16*FLOWS-1:0] flow_taken,
    output logic write,
    input logic write_ready,
    output logic [31:0] write_address,
    output logic [nic_pkg::LINE_BITS-1:0] write_data
);
  logic [FLOW_BITS-1:0] flow_q;
  logic [15:0] told_q[FLOWS];
  logic [15:0] taken;

  assign taken = flow_taken[16*flow_q+:16];
  assign write = flow_enable[flow_q] && taken != told_q[flow_q];
  assign write_address = flow_status[32*flow_q+:32];
  assign write_data = nic_pkg::LINE_BITS'(taken);

  always_ff @(posedge clk) begin
    if (rst) begin
      flow_q <= '0;
      for (int i = 0; i < FLOWS; i++) told_q[i] <= '0;
    end else begin
      if (write && write_ready) told_q[flow_q] <= taken;
      if (!write || write_ready) flow_q <= (flow_q == FLOW_BITS'(FLOWS - 1)) ? '0 : flow_q + 1'b1;
    end
  end
endmodule
