// Memory for lines, in block RAM: one write port, one read port with the data a cycle later.
// A line that is read while it is written reads as it was before.
module line_ram #(
    parameter int WIDTH = 512,
    parameter int ADDRESS_BITS = 6
) (
    input logic clk,
    input logic write,
    input logic [ADDRESS_BITS-1:0] write_address,
    input logic [WIDTH-1:0] write_data,
    input logic [ADDRESS_BITS-1:0] read_address,
    output logic [WIDTH-1:0] read_data
);
  logic [WIDTH-1:0] memory_q[1<<ADDRESS_BITS];

  always_ff @(posedge clk) begin
    if (write) memory_q[write_address] <= write_data;
    read_data <= memory_q[read_address];
  end
endmodule
